// Samples of one group side by side, turn by turn.

import { get, id } from "../api.js";
import { badge, crumbs, h, heading } from "../dom.js";
import { fixed, runOf, to, whole } from "../format.js";
import { answers, pager, said } from "./turns.js";

export const PAGE = 5;
const MOST = 4;

export const title = ([group]) => `Compare samples of ${group}`;

export async function load([group, chosen = "", after = "0"], signal) {
  const view = await get(`groups/${id(group)}`, { signal });
  const wanted = chosen.split(",").filter(Boolean).map(Number).slice(0, MOST);
  const there = view.samples.filter((sample) => wanted.includes(sample.index) && sample.record?.trajectory);
  const query = { after, limit: PAGE };
  const outlines = await Promise.all(there.map((sample) => get(`jobs/${id(sample.job_id)}/turns`, { signal, query })));
  return { view, samples: there.map((sample, place) => ({ ...sample, outline: outlines[place] })) };
}

export function mount({ view, samples }, [group, , after = "0"]) {
  const run = runOf(group);
  const start = Number(after);
  const chosen = samples.map((sample) => sample.index);
  const most = Math.max(0, ...samples.map((sample) => sample.outline.turns_in_all));
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [view.summary.group_id, to.group(run, view.summary.group_id)], ["compare"]),
    heading(`Compare samples of ${view.summary.group_id}`),
    h("p", { class: "fine" }, `Task ${view.summary.task_id}. Choose up to ${MOST} samples.`),
    h("ul", { class: "choice", "aria-label": "Samples" }, view.samples.filter((sample) => sample.record?.trajectory).map((sample) => choice(group, sample, chosen))),
    samples.length > 0 && pager(start, most, PAGE, (turn) => `${to.compare(group, chosen)}/${turn}`),
    samples.length > 0 && sides(samples, start, most),
  ].filter(Boolean);
}

function choice(group, sample, chosen) {
  const on = chosen.includes(sample.index);
  const then = on ? chosen.filter((each) => each !== sample.index) : [...chosen, sample.index].slice(-MOST).sort((a, b) => a - b);
  return h("li", {}, h("a", { class: "button", href: to.compare(group, then), "aria-current": on ? "true" : null },
    `${sample.index}: ${fixed(sample.record.reward)}`));
}

// `samples` with their outlines; `name` and `about` stand for the index where they are of other groups.
export function sides(samples, start, most) {
  const turns = Array.from({ length: Math.max(0, Math.min(PAGE, most - start)) }, (_, place) => start + place);
  const head = samples.map((sample) => h("th", { scope: "col" },
    h("a", { href: to.trajectory(sample.job_id) }, sample.name ?? `Sample ${sample.index}`), " ", badge(sample.state),
    sample.about ? h("p", { class: "fine" }, sample.about) : null,
    h("p", { class: "fine" }, `reward ${fixed(sample.record.reward)} · advantage ${fixed(sample.advantage)} · ${whole(sample.outline.turns_in_all)} turns · ${whole(sample.record.response_tokens)} tokens · ${sample.outline.truncated_by ?? sample.outline.stop_reason}`)));
  const rows = turns.map((turn, place) => h("tr", {}, h("th", { scope: "row", class: "num" }, turn + 1),
    samples.map((sample) => h("td", {}, side(sample.outline.turns[place])))));
  return h("div", { class: "frame", role: "region", "aria-label": "Samples side by side", tabindex: "0" },
    h("table", { class: "sides" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Turn"), head)), h("tbody", {}, rows)));
}

function side(turn) {
  if (!turn) return h("span", { class: "fine" }, "ended before");
  return [said(turn), answers(turn)];
}
