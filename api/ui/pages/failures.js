// What goes wrong in a run, first what goes wrong always: tasks, what graders and judges said, errors with their
// tracebacks, tools, verdicts.

import { get, id } from "../api.js";
import { evidence } from "../blocks.js";
import { crumbs, h, heading, section, table } from "../dom.js";
import { everyGroup } from "../every_group.js";
import { fixed, percent, to, whole } from "../format.js";
import { rewards } from "./groups_table.js";
import { views } from "./run_views.js";

const ROWS = 50;

export const title = ([run]) => `Failures of ${run}`;
export const load = ([run], signal) => everyGroup(run, new Map(), { signal });

export function mount(groups, [run], signal) {
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], ["failures"]),
    heading(`Failures of ${run}`),
    views(run, "failures"),
    section("Tasks without any reward above 0", tasksTable(run, groups)),
    section("What graders said of samples without a reward above 0", notesTable(run, groups, signal)),
    section("Errors", errorsTable(run, groups, signal)),
    section("Tools whose calls fail", toolsTable(run, groups)),
    section("Why groups were not accepted", reasonsTable(run, groups)),
  ];
}

// Rows by a key: {key, count, groups, newest}, the largest counts first, and `size`, how many rows there are in all.
function counted(groups, pairs) {
  const found = new Map();
  for (const group of groups) {
    for (const [key, count] of pairs(group)) {
      const row = found.get(key);
      if (row) { row.count += count; row.groups += 1; row.newest = group; } else found.set(key, { key, count, groups: 1, newest: group });
    }
  }
  return { size: found.size, rows: most(found.values()) };
}

// As many as a table shows. Of 40,000 notes that differ, sorting all would block the page.
function most(rows) {
  const top = [];
  for (const row of rows) {
    if (top.length === ROWS && row.count <= top.at(-1).count) continue;
    const place = top.findIndex((each) => each.count < row.count);
    top.splice(place < 0 ? top.length : place, 0, row);
    if (top.length > ROWS) top.pop();
  }
  return top;
}

function tasksTable(run, groups) {
  const solved = new Set(groups.filter((group) => group.rewards.some((reward) => reward > 0)).map((group) => group.task_id));
  const left = groups.filter((group) => !solved.has(group.task_id) && group.rewards.length);
  const always = counted(left, (group) => [[group.task_id, group.rewards.length]]);
  const without = new Map();
  for (const group of left) without.set(group.task_id, (without.get(group.task_id) ?? 0) + group.rewards.filter((reward) => reward === null).length);
  const columns = [
    { head: "Task", kind: "main", cell: (row) => row.key },
    { head: "Samples", kind: "num", cell: (row) => whole(row.count) },
    { head: "Groups", kind: "num", cell: (row) => whole(row.groups) },
    { head: "Without a reward", kind: "num", cell: (row) => whole(without.get(row.key)) },
    { head: "Newest group", cell: (row) => newest(run, row) },
    { head: "Its rewards", cell: (row) => rewards(row.newest.rewards) },
  ];
  return [h("p", { class: "fine" }, `${whole(always.size)} of ${whole(new Set(groups.map((group) => group.task_id)).size)} tasks`), table("Tasks without any reward above 0", columns, always.rows, "Every task was solved at least once."), more(always)];
}

function notesTable(run, groups, signal) {
  const found = counted(groups, (group) => Object.entries(group.notes));
  const place = h("div", { role: "status" });
  const columns = [
    { head: "Note", kind: "main words", cell: (row) => row.key },
    { head: "Samples", kind: "num", cell: (row) => whole(row.count) },
    { head: "Groups", kind: "num", cell: (row) => whole(row.groups) },
    { head: "Newest group", cell: (row) => newest(run, row) },
    { head: "What it rests on", cell: (row) => showing(run, row, place, signal, (record) => record.note?.startsWith(row.key) && !(record.reward > 0), verdict) },
  ];
  return [table("What graders said", columns, found.rows, "No grader has said anything of a sample without a reward."), more(found), place];
}

const verdict = (record) => [h("p", {}, record.note), evidence(record.evidence)];

function errorsTable(run, groups, signal) {
  const found = counted(groups, (group) => Object.entries(group.errors));
  const place = h("div", { role: "status" });
  const columns = [
    { head: "Error", kind: "main", cell: (row) => row.key },
    { head: "Samples", kind: "num", cell: (row) => whole(row.count) },
    { head: "Groups", kind: "num", cell: (row) => whole(row.groups) },
    { head: "Newest group", cell: (row) => newest(run, row) },
    { head: "Traceback", cell: (row) => showing(run, row, place, signal, (record) => record.error?.type === row.key, traceback) },
  ];
  return [table("Errors", columns, found.rows, "No sample ended in an error."), place];
}

function traceback({ error }) {
  return [
    h("p", {}, `in ${error.stage}, ${error.cause ?? "worker"}: ${error.type}: ${error.message}`),
    error.traceback ? h("pre", { class: "text" }, error.traceback) : h("p", { class: "fine" }, "It has no traceback."),
  ];
}

// A button that shows the newest sample of a row in `place`.
function showing(run, row, place, signal, fits, told) {
  return h("button", { type: "button", "aria-label": `Show the newest ${row.key}`, onclick: async () => {
    try {
      const group = row.newest.group_id;
      const { samples } = await get(`groups/${id(`${run}:${group}`)}`, { signal });
      const sample = samples.find((each) => each.record && fits(each.record));
      place.replaceChildren(...[h("p", {}, h("a", { href: to.job(sample.job_id) }, sample.job_id)), told(sample.record)].flat(Infinity));
    } catch (fault) {
      if (!signal.aborted) place.replaceChildren(h("p", { role: "alert" }, fault.message));
    }
  } }, "Show");
}

function toolsTable(run, groups) {
  const found = counted(groups, (group) => Object.entries(group.tool_failures));
  const calls = groups.reduce((sum, group) => sum + group.tool_calls, 0);
  const columns = [
    { head: "Tool", kind: "main", cell: (row) => row.key },
    { head: "Failed calls", kind: "num", cell: (row) => whole(row.count) },
    { head: "Of all calls", kind: "num", cell: (row) => percent(row.count / Math.max(1, calls)) },
    { head: "Groups", kind: "num", cell: (row) => whole(row.groups) },
    { head: "Newest group", cell: (row) => newest(run, row) },
  ];
  return table("Tools whose calls fail", columns, found.rows, "No call of a tool failed.");
}

function reasonsTable(run, groups) {
  const found = counted(groups.filter((group) => group.state !== "accepted"), (group) => [[`${group.state}: ${group.reason ?? "no reason told"}`, 1]]);
  const columns = [
    { head: "Verdict and reason", kind: "main words", cell: (row) => row.key },
    { head: "Groups", kind: "num", cell: (row) => whole(row.count) },
    { head: "Mean reward of the newest", kind: "num wide", cell: (row) => fixed(row.newest.mean) },
    { head: "Newest group", cell: (row) => newest(run, row) },
  ];
  return [table("Why groups were not accepted", columns, found.rows, "Every group was accepted."), more(found)];
}

const newest = (run, row) => h("a", { href: to.group(run, row.newest.group_id) }, row.newest.group_id);

const more = ({ size }) => (size > ROWS ? h("p", { class: "fine" }, `and ${whole(size - ROWS)} more`) : null);
