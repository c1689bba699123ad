// Groups as rows: how far each is, and its rewards as small bars.

import { get, id, viewing } from "../api.js";
import { badge, h, section, table } from "../dom.js";
import { fixed, to } from "../format.js";

// What a list is called, and what it says when it is empty.
export const LISTS = {
  open: ["Open groups", "No group is open."],
  closed: ["Closed groups, not acknowledged", "None waits for the trainer."],
  archived: viewing ? ["Groups", "There is no group."] : ["Archived groups", "The archive has none of it, or there is none."],
};

const BEGINNING = 50;

// The newest groups of the archive; none where it does not answer, so that a page of live data is not lost with it.
export async function archived(run, batch, signal) {
  try {
    return await get(`runs/${id(run)}/groups`, { signal, query: { state: "archived", batch, limit: BEGINNING } });
  } catch (error) {
    if (signal.aborted || error.status === 401 || viewing) throw error;
    return { groups: [], next: null, fault: error.status === 404 ? null : error.message };
  }
}

export function archivedSection(run, batch, page) {
  if (!viewing && !page.groups.length && !page.fault) return null;
  return page.fault ? section(LISTS.archived[0], h("p", { class: "why" }, page.fault)) : groupsSection("archived", run, batch, page);
}

// The beginning of a list of groups, and where there are more of them.
export function groupsSection(state, run, batch, page) {
  const [label, empty] = LISTS[state];
  return section(label,
    groupsTable(label, run, page.groups, page.next ? "None among the first that were searched." : empty),
    page.next && h("p", {}, h("a", { href: to.list(run, state, batch, page.next) }, `More ${label.toLowerCase()}`)));
}

export function groupsTable(label, run, groups, empty) {
  const columns = [
    { head: "Group", kind: "main", cell: (group) => h("a", { href: to.group(run, group.group_id) }, group.group_id) },
    { head: "Task", kind: "wide", cell: (group) => group.task_id },
    { head: "State", cell: (group) => [badge(group.state), group.archived && !viewing ? [" ", badge("archived")] : null] },
    { head: "Ended", kind: "num", cell: (group) => `${group.ended}/${Math.max(group.n, group.jobs)}` },
    { head: "Rewards", cell: (group) => rewards(group.rewards) },
    { head: "Mean", kind: "num", cell: (group) => fixed(group.mean) },
    { head: "Spread", kind: "num", cell: (group) => fixed(group.std) },
    { head: "Version", kind: "num wide", cell: (group) => group.policy_version ?? "–" },
    { head: "Reason", kind: "wide words", cell: (group) => group.reason ?? "–" },
  ];
  return table(label, columns, groups, empty);
}

// One bar a sample, as high as its reward between the least and the most; a dash is a sample without a reward.
export function rewards(values) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return "–";
  const least = Math.min(0, ...known);
  const most = Math.max(1, ...known);
  const text = `Rewards: ${values.map((value) => (value === null ? "none" : fixed(value))).join(", ")}`;
  return h("span", { class: "spark", role: "img", "aria-label": text }, values.map((value) =>
    h("span", value === null
      ? { class: "none" }
      : { style: { height: `${8 + (92 * (value - least)) / (most - least)}%` }, "data-reward": value > 0 ? "some" : "no" })));
}
