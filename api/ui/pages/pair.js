// Any two samples side by side: of two tasks, steps or policies, also of two runs.

import { get, id } from "../api.js";
import { crumbs, h, heading } from "../dom.js";
import { groupOf, runOf, to } from "../format.js";
import { PAGE, sides } from "./compare.js";
import { pager } from "./turns.js";

export const title = ([left, right]) => `Compare ${left} and ${right}`;

export async function load([left, right, after = "0"], signal) {
  return Promise.all([left, right].map(async (job) => {
    const [group, outline] = await Promise.all([
      get(`groups/${id(groupOf(job))}`, { signal }),
      get(`jobs/${id(job)}/turns`, { signal, query: { after, limit: PAGE } }),
    ]);
    const sample = group.samples.find((each) => each.job_id === job);
    return { ...sample, outline, name: job, about: `task ${group.summary.task_id}, batch ${group.summary.batch_id}, versions ${outline.versions.join(", ") || "not told"}` };
  }));
}

export function mount(samples, [left, right, after = "0"]) {
  const start = Number(after);
  const most = Math.max(...samples.map((sample) => sample.outline.turns_in_all));
  const pages = pager(start, most, PAGE, (turn) => to.pair(left, right, turn));
  return [
    crumbs(["Runs", "#/runs"], [runOf(left), to.run(runOf(left))], ["compare two samples"]),
    heading("Compare two samples"),
    h("p", { class: "pager" }, h("a", { class: "button", href: to.pair(right, left) }, "Change sides")),
    pages,
    sides(samples, start, most),
  ].filter(Boolean);
}

// Buttons on the page of a sample: it is chosen, and at the next one both are compared.
const CHOSEN = "prorl-chosen";

export function choose(job) {
  const place = h("span", {});
  const paint = () => {
    const chosen = sessionStorage.getItem(CHOSEN);
    const pick = (text, value) => h("button", { type: "button", onclick: () => { if (value) sessionStorage.setItem(CHOSEN, value); else sessionStorage.removeItem(CHOSEN); paint(); } }, text);
    place.replaceChildren(...(chosen === job ? ["Chosen: open another sample to compare it with this one. ", pick("Forget it", null)]
      : [chosen ? h("a", { class: "button", href: to.pair(chosen, job) }, `Compare with ${chosen}`) : null, chosen ? " " : null, pick("Choose for comparison", job)].filter(Boolean)));
  };
  paint();
  return place;
}
