// Line charts by uPlot, and histograms. Each says in words what it shows.

import { h } from "./dom.js";
import { default as uPlot } from "./vendor/uplot.js";

const HEIGHT = 180;
const COLOURS = ["--busy", "--odd", "--good", "--bad"];

// A colour of the style sheet as the canvas takes it: `light-dark()` is resolved in a property alone.
function resolved(name) {
  const probe = h("span", { style: { color: `var(${name})` } });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// One task a chart: a page of them would block clicks for as long as all take together.
let turn = Promise.resolve();
const inTurn = (draw) => { turn = turn.then(() => new Promise((done) => setTimeout(done))).then(draw).catch(reportError); };

// `series`: [{name, values}], a value for each of `xs`; null is a gap. `label(x)` names a place, `show(value)` a value.
export function lines(title, xs, series, { label, show, time = false, signal }) {
  const place = h("div", { class: "plot", role: "img", "aria-label": told(title, xs, series, label, show) });
  const read = h("p", { class: "fine", "aria-hidden": "true" }, " ");
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, title), legend(series)), place, read);
  const at = (index) => { read.textContent = index === null || index === undefined ? " " : said(index, xs, series, label, show); };
  let drawn = null;
  const draw = () => {
    if (signal.aborted) return;
    drawn?.destroy();
    const size = { width: Math.max(200, place.clientWidth), height: HEIGHT };
    drawn = new uPlot({ ...size, ...options(series, { show, time, at }) }, [xs, ...series.map((each) => each.values)], place);
  };
  // Drawn when it is on the page, and again in another width or colour.
  let width = 0;
  const observer = new ResizeObserver(() => {
    if (place.clientWidth && Math.abs(place.clientWidth - width) > 1) { width = place.clientWidth; inTurn(draw); }
  });
  observer.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", () => inTurn(draw), { signal });
  signal.addEventListener("abort", () => { observer.disconnect(); drawn?.destroy(); });
  return figure;
}

function options(series, { show, time, at }) {
  const ink = resolved("--soft");
  const grid = { stroke: resolved("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui, sans-serif" };
  const steps = (_, values) => values.map((value) => (Number.isInteger(value) ? value : ""));
  return {
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { size: 7 } },
    scales: { x: { time }, y: { range: (_, low, high) => padded(low, high) } },
    axes: [{ ...axis, size: 32, ...(time ? {} : { values: steps, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }) }, { ...axis, size: 58, values: (_, values) => values.map((value) => show(value)) }],
    series: [{}, ...series.map((each, place) => ({ label: each.name, stroke: resolved(COLOURS[place % COLOURS.length]), width: 1.5, spanGaps: true, points: { size: 5 } }))],
    hooks: { setCursor: [(plot) => at(plot.cursor.idx)] },
  };
}

function padded(low, high) {
  if (low === null) return [0, 1];
  if (low === high) return [Math.min(0, low), high === 0 ? 1 : Math.max(0, high * 1.1)];
  const margin = 0.06 * (high - low);
  return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
}

function legend(series) {
  return series.length < 2 ? null : h("ul", { class: "legend" }, series.map((each, place) => h("li", {}, h("span", { class: "swatch", "data-line": place % COLOURS.length }), ` ${each.name}`)));
}

const said = (index, xs, series, label, show) => `${label(xs[index])}: ${series.map((each) => `${each.name} ${each.values[index] === null ? "none" : show(each.values[index])}`).join(", ")}`;

function told(title, xs, series, label, show) {
  const parts = series.map((each) => {
    const known = each.values.filter((value) => value !== null);
    return known.length ? `${each.name} from ${show(known[0])} to ${show(known.at(-1))}, least ${show(Math.min(...known))}, most ${show(Math.max(...known))}` : `${each.name}: no value`;
  });
  return `${title}, ${xs.length} points${xs.length ? ` from ${label(xs[0])} to ${label(xs.at(-1))}` : ""}: ${parts.join("; ")}`;
}

// A histogram of {from, to, count}.
export function histogram(title, found, show) {
  const most = Math.max(1, ...found.map((bin) => bin.count));
  const all = found.reduce((total, bin) => total + bin.count, 0);
  const text = `${title}: ${found.filter((bin) => bin.count).map((bin) => `${bin.count} from ${show(bin.from)} to ${show(bin.to)}`).join(", ") || "no sample"}`;
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("strong", {}, title), h("span", { class: "fine" }, ` ${all} samples`)),
    h("div", { class: "bins", role: "img", "aria-label": text }, found.map((bin) =>
      h("span", { title: `${show(bin.from)} to ${show(bin.to)}: ${bin.count}`, style: { height: `${(100 * bin.count) / most}%` } }))),
    found.length ? h("p", { class: "fine ends" }, h("span", {}, show(found[0].from)), h("span", {}, show(found.at(-1).to))) : null);
}
