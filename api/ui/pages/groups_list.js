// Groups of a run, or of one of its batches, a page at a time.

import { get, id } from "../api.js";
import { crumbs, h, heading } from "../dom.js";
import { to } from "../format.js";
import { groupsTable, LISTS } from "./groups_table.js";

const PAGE = 100;

export const title = ([run, state]) => `${LISTS[state]?.[0] ?? "Groups"} of ${run}`;

export const load = ([run, state, batch, after], signal) =>
  get(`runs/${id(run)}/groups`, { signal, query: { state, batch: batch || null, after: after || null, limit: PAGE } });

export function view({ groups, next }, [run, state, batch = "", after = ""]) {
  const [label, empty] = LISTS[state];
  const step = (name, href) => h("a", { class: "button", href }, name);
  return [
    crumbs(...[["Runs", "#/runs"], [run, to.run(run)], batch && [batch, to.batch(run, batch)], [label.toLowerCase()]].filter(Boolean)),
    heading(label),
    groupsTable(label, run, groups, next ? "None among those that were searched." : empty),
    h("nav", { class: "pager", "aria-label": "Groups" },
      after && step("From the first", to.list(run, state, batch)),
      next && step("Next", to.list(run, state, batch, next))),
  ];
}
