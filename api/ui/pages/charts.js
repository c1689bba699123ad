// A run over its steps or over time: rewards, spread, lengths, failures, staleness, throughput, stages; and distributions.

import { get, viewing } from "../api.js";
import { histogram, lines } from "../chart.js";
import { crumbs, h, heading } from "../dom.js";
import { everyGroup, periods, steps } from "../every_group.js";
import { bins, busy, inRow, rewardsOf, spanOf, tokensOf, turnsOf } from "../figures.js";
import { clock, fixed, moment, percent, seconds, to, whole } from "../format.js";
import { follow } from "../live.js";
import { views } from "./run_views.js";

const PERIODS = 60;
const BINS = 20;
const AGAIN_MS = 3_000;

export const title = ([run]) => `Charts of ${run}`;

export async function load([run], signal) {
  const known = new Map();
  const [groups, slots] = await Promise.all([everyGroup(run, known, { signal }), slotsNow(signal)]);
  return { known, groups, slots };
}

// Slots of each stage of the service, an aside; none where the page shows files, or the service does not say.
async function slotsNow(signal) {
  if (viewing) return {};
  const { stages } = await get("overview", { signal }).catch(() => ({ stages: [] }));
  return Object.fromEntries(stages.map(({ stage, slots }) => [stage, slots]));
}

export function mount({ known, groups, slots }, [run, over = "step"], signal) {
  const place = h("div", { class: "charts" });
  const spread = h("div", { class: "charts" });
  const chosen = h("select", { id: "of-batch", onchange: () => distributions() });
  const said = h("p", { class: "fine", role: "status" });
  let drawing = new AbortController();
  let found = groups;

  function distributions() {
    const some = chosen.value ? found.filter((group) => group.batch_id === chosen.value) : found;
    spread.replaceChildren(
      histogram("Rewards", bins(rewardsOf(some), BINS), fixed),
      histogram("Sampled tokens", bins(tokensOf(some), BINS), (value) => whole(Math.round(value))),
      histogram("Turns", bins(turnsOf(some), BINS), (value) => fixed(value, 1)));
  }

  function draw() {
    drawing.abort();
    drawing = new AbortController();
    signal.addEventListener("abort", () => drawing.abort(), { signal: drawing.signal });
    const closed = found.filter((group) => group.ended || group.closed_ms);
    const names = steps(closed);
    said.textContent = `closed groups: ${whole(closed.length)}; batches: ${whole(names.length)}`;
    const before = chosen.value;
    chosen.replaceChildren(h("option", { value: "" }, "all batches"), ...names.map(({ name }) => h("option", { value: name }, name)));
    chosen.value = names.some(({ name }) => name === before) ? before : "";
    place.replaceChildren(...(closed.length ? plots(over, closed, slots, drawing.signal) : [h("p", { class: "empty" }, "No group has closed yet.")]));
    distributions();
  }

  async function again() {
    found = await everyGroup(run, known, { signal });
    draw();
  }

  draw();
  if (!viewing) follow(run, { signal, told: later(again, signal), state: () => {} });
  const link = (name, text) => h("a", { class: "button", href: to.charts(run, name), "aria-current": over === name ? "true" : null }, text);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], ["charts"]),
    heading(`Charts of ${run}`),
    views(run, "charts"),
    h("p", { class: "pager" }, link("step", "Over steps"), link("time", "Over time"), said),
    place,
    h("h2", {}, "Distributions"),
    h("p", {}, h("label", { for: "of-batch" }, "Samples of"), " ", chosen),
    spread,
  ];
}

// At most one look in a while, and one after the last change.
function later(act, signal) {
  let due = null;
  signal.addEventListener("abort", () => clearTimeout(due));
  return () => { due ??= setTimeout(async () => { due = null; if (!document.hidden) await act().catch(() => {}); }, AGAIN_MS); };
}

function plots(over, groups, slots, signal) {
  const time = over === "time";
  const rows = inRow(time ? periods(groups, PERIODS) : steps(groups));
  if (!rows.length) return [h("p", { class: "empty" }, "Nothing here says when a group closed: choose steps.")];
  const used = time ? busy(groups, rows) : rows.map((row) => busy(row.groups, [spanOf(row.groups)])[0]);
  rows.forEach((row, place) => { row.busy = used[place]; });
  const xs = rows.map((row, place) => (time ? row.from / 1000 : place + 1));
  const label = time ? (x) => moment(x * 1000) : (x) => (Number.isInteger(x) && rows[x - 1] ? `${x}: ${rows[x - 1].name}` : "");
  const short = time ? (x) => clock(x * 1000) : (x) => String(x);
  const plot = (name, series, show) => lines(name, xs,
    series.map(([text, value]) => ({ name: text, values: rows.map((row) => value(row.figures, row) ?? null) })),
    { label: (x) => (time ? label(x) : label(x) || short(x)), show, time, signal });
  const rate = (value) => (one, row) => (took(row) === null ? null : (60_000 * value(one)) / took(row));
  const number = (value) => whole(Math.round(value));
  return [
    plot("Reward", [["mean", (one) => one.reward], ["best sample", (one) => one.best]], fixed),
    plot("Spread", [["mean spread of a group", (one) => one.spread], ["share of groups without one", (one) => one.flat]], fixed),
    plot("Length", [["mean tokens", (one) => one.tokens], ["90th percentile", (one) => one.longest]], number),
    plot("Turns", [["mean", (one) => one.turns]], (value) => fixed(value, 1)),
    plot("Samples that went wrong", [["truncated", (one) => one.truncated], ["infrastructure", (one) => one.infra], ["agent or time", (one) => one.agent]], percent),
    plot("Tool calls that failed", [["share", (one) => one.tools]], percent),
    plot("Staleness", [["versions behind", (one) => one.behind]], (value) => fixed(value, 1)),
    plot("Throughput", [["groups a minute", rate((one) => one.groups)]], (value) => fixed(value, 1)),
    plot("Sampled tokens a minute", [["tokens", rate((one) => one.sampled)]], number),
    plot("Stage utilisation: busy slots", ["init", "run", "eval"].map((stage) =>
      [`${stage.toUpperCase()}${slots[stage] ? `, of ${whole(slots[stage])} now` : ""}`, (_, row) => row.busy[stage]]), (value) => fixed(value, 1)),
    plot("Time of a sample", [["INIT", (one) => one.init], ["RUN", (one) => one.run], ["EVAL", (one) => one.eval]], seconds),
  ];
}

// How long a part lasted: its period, or from its first closed group to its last.
function took(row) {
  if (row.ms) return row.ms;
  const times = row.groups.map((group) => group.closed_ms).filter(Boolean);
  return times.length > 1 ? Math.max(1_000, times.at(-1) - times[0]) : null;
}
