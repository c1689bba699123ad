// All groups of a run to filter and sort, and a full-text search in what agents said and tools answered.

import { get, id, viewing } from "../api.js";
import { badge, crumbs, h, heading, section } from "../dom.js";
import { everyGroup } from "../every_group.js";
import { mean } from "../figures.js";
import { fixed, groupOf, percent, to, whole } from "../format.js";
import { rewards } from "./groups_table.js";
import { views } from "./run_views.js";

const ROWS = 100;
const MOST_HITS = 200;

const failed = (group) => Object.values(group.tool_failures).reduce((sum, count) => sum + count, 0);
const COLUMNS = [
  { name: "group", head: "Group", value: (group) => group.group_id, cell: (group, run) => h("a", { href: to.group(run, group.group_id) }, group.group_id), kind: "main" },
  { name: "task", head: "Task", value: (group) => group.task_id, cell: (group) => group.task_id, kind: "wide" },
  { name: "batch", head: "Batch", value: (group) => group.batch_id, cell: (group) => group.batch_id, kind: "wide" },
  { name: "state", head: "State", value: (group) => group.state, cell: (group) => badge(group.state) },
  { name: "rewards", head: "Rewards", cell: (group) => rewards(group.rewards) },
  { name: "mean", head: "Mean", value: (group) => group.mean, cell: (group) => fixed(group.mean), kind: "num" },
  { name: "spread", head: "Spread", value: (group) => group.std, cell: (group) => fixed(group.std), kind: "num" },
  { name: "tokens", head: "Tokens", value: (group) => mean(group.tokens), cell: (group) => whole(rounded(mean(group.tokens))), kind: "num" },
  { name: "turns", head: "Turns", value: (group) => mean(group.turns), cell: (group) => fixed(mean(group.turns), 1), kind: "num" },
  { name: "wrong", head: "Tool failures", value: failed, cell: (group) => (group.tool_calls ? percent(failed(group) / group.tool_calls) : "–"), kind: "num wide" },
  { name: "reason", head: "Reason", value: (group) => group.reason, cell: (group) => group.reason ?? "–", kind: "wide words" },
];
const ONLY = {
  "": "all of them",
  spread: "rewards that differ",
  none: "every reward 0",
  full: "every reward above 0",
  error: "with an error",
};
const KEEP = {
  "": () => true,
  spread: (group) => group.std > 0,
  none: (group) => group.ended > 0 && group.rewards.every((reward) => !(reward > 0)),
  full: (group) => group.rewards.length > 0 && group.rewards.every((reward) => reward > 0),
  error: (group) => Object.keys(group.errors).length > 0,
};

const rounded = (value) => (value === null ? null : Math.round(value));

export const title = ([run]) => `Groups of ${run}`;
export const load = ([run], signal) => everyGroup(run, new Map(), { open: true, signal });

export function mount(groups, [run, asked = ""], signal) {
  const chosen = { text: "", state: "", batch: "", only: "", sort: "", up: "1", q: "", ...Object.fromEntries(new URLSearchParams(asked)) };
  const rows = h("div", { class: "frame", role: "region", "aria-label": "Groups", tabindex: "0" });
  const count = h("p", { class: "fine", role: "status" });
  const pager = h("nav", { class: "pager", "aria-label": "Groups" });
  let first = 0;

  function show() {
    const kept = sorted(groups.filter((group) => fits(group, chosen)), chosen);
    first = Math.min(first, Math.max(0, kept.length - 1));
    first -= first % ROWS;
    count.textContent = `${whole(kept.length)} of ${whole(groups.length)} groups`;
    rows.replaceChildren(table(kept.slice(first, first + ROWS), run, chosen, sortBy));
    const step = (text, place, there) => h("button", { type: "button", disabled: !there, onclick: () => { first = place; show(); } }, text);
    pager.replaceChildren(...(kept.length <= ROWS ? [] : [
      step("Previous", first - ROWS, first > 0),
      h("span", {}, `${whole(first + 1)}–${whole(Math.min(kept.length, first + ROWS))}`),
      step("Next", first + ROWS, first + ROWS < kept.length)]));
  }

  // The address says what is shown, so that it can be passed on; no other page is loaded for it.
  function change(name, value) {
    chosen[name] = value;
    first = name === "q" ? first : 0;
    const told = new URLSearchParams(Object.entries(chosen).filter(([key, each]) => each && !(key === "up" && each === "1")));
    history.replaceState(null, "", `${to.explore(run)}/${encodeURIComponent(told)}`);
    if (name !== "q") show();
  }

  function sortBy(name) {
    chosen.up = chosen.sort === name && chosen.up === "1" ? "0" : "1";
    change("sort", name);
    rows.querySelector(`[data-column="${name}"]`)?.focus();
  }

  show();
  const field = (name, label, control) => h("div", { class: "field" }, h("label", { for: `by-${name}` }, label), control);
  const select = (name, options) => h("select", { id: `by-${name}`, onchange: (event) => change(name, event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: chosen[name] === value }, text)));
  const distinct = (value) => [...new Set(groups.map(value))].sort().map((each) => [each, each]);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], ["groups"]),
    heading(`Groups of ${run}`),
    views(run, "explore"),
    search(run, chosen, change, signal),
    section("Groups",
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        field("text", "Name, task or reason", h("input", { id: "by-text", type: "search", value: chosen.text, oninput: (event) => change("text", event.target.value) })),
        field("state", "State", select("state", [["", "any"], ...distinct((group) => group.state)])),
        field("batch", "Batch", select("batch", [["", "any"], ...distinct((group) => group.batch_id)])),
        field("only", "Rewards", select("only", Object.entries(ONLY)))),
      count, rows, pager),
  ].filter(Boolean);
}

function fits(group, { text, state, batch, only }) {
  const wanted = text.toLowerCase();
  return (!state || group.state === state) && (!batch || group.batch_id === batch) && (KEEP[only] ?? KEEP[""])(group)
    && (!wanted || [group.group_id, group.task_id, group.data_source, group.reason ?? ""].some((each) => each.toLowerCase().includes(wanted)));
}

// What has no value comes last in either order; without a column the order is that of time.
function sorted(found, { sort, up }) {
  const column = COLUMNS.find((each) => each.name === sort && each.value);
  if (!column) return up === "1" ? [...found].reverse() : found;
  const sign = up === "1" ? 1 : -1;
  const missing = (value) => value === null || value === undefined;
  return found.map((group) => [column.value(group), group]).sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  }).map(([, group]) => group);
}

function table(shown, run, { sort, up }, sortBy) {
  if (!shown.length) return h("p", { class: "empty inside" }, "No group fits.");
  const head = COLUMNS.map((column) => h("th", { scope: "col", class: column.kind, "aria-sort": sort === column.name ? (up === "1" ? "ascending" : "descending") : null },
    column.value ? h("button", { type: "button", class: "sort", "data-column": column.name, onclick: () => sortBy(column.name) }, column.head) : column.head));
  const body = shown.map((group) => h("tr", {}, COLUMNS.map((column) =>
    column.kind === "main" ? h("th", { scope: "row", class: "main" }, column.cell(group, run)) : h("td", { class: column.kind }, column.cell(group, run)))));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

// Searches until enough is found: each call looks at some groups, and this shows what came so far.
function search(run, chosen, change, signal) {
  if (viewing === "bundle") return null;
  const field = h("input", { id: "search", type: "search", value: chosen.q, "aria-describedby": "search-help" });
  const said = h("p", { class: "fine", role: "status" });
  const found = h("ol", { class: "hits" });
  let now = new AbortController();

  async function look() {
    now.abort();
    now = new AbortController();
    const { signal: mine } = now;
    signal.addEventListener("abort", () => now.abort(), { signal: mine });
    found.replaceChildren();
    const words = field.value.trim();
    change("q", words);
    if (!words) { said.textContent = ""; return; }
    let searched = 0;
    let hits = 0;
    let unread = 0;
    try {
      for (const state of viewing ? ["archived"] : ["closed", "archived"]) {
        for (let after = "0"; after !== null && hits < MOST_HITS;) {
          said.textContent = `Searching: ${whole(hits)} hits in ${whole(searched)} groups so far`;
          const page = await get(`runs/${id(run)}/search`, { signal: mine, query: { q: words, state, after } }).catch((error) => {
            if (error.status === 404) return { hits: [], searched: 0, unread: 0, next: null };
            throw error;
          });
          searched += page.searched;
          hits += page.hits.length;
          unread += page.unread;
          found.append(...page.hits.map((each) => hit(each)));
          after = page.next;
        }
      }
      said.textContent = `${whole(hits)} hits in ${whole(searched)} groups${hits >= MOST_HITS ? ": the newest; add words to find less" : ""}${unread ? `; trajectories that could not be read: ${whole(unread)}` : ""}`;
    } catch (error) {
      if (!mine.aborted) said.textContent = error.message;
    }
  }

  if (chosen.q) queueMicrotask(look);
  return section("Search in texts",
    h("form", { class: "search", role: "search", onsubmit: (event) => { event.preventDefault(); look(); } },
      h("label", { for: "search" }, "Words"), field, h("button", { type: "submit" }, "Search"),
      h("p", { id: "search-help", class: "fine" }, "In messages, tool calls, results, notes and errors. All words must stand in one text; quotes keep words together.")),
    said, found);
}

function hit(one) {
  const [start, end] = one.match;
  const [run] = one.job_id.split(":");
  const where = one.turn === null ? one.where : `turn ${one.turn + 1}, ${one.where}`;
  const link = one.turn === null ? (one.where === "prompt" ? to.trajectory(one.job_id) : to.job(one.job_id)) : to.turn(one.job_id, one.turn);
  // Positions count characters; those of JavaScript count UTF-16 units.
  const letters = [...one.excerpt];
  return h("li", {},
    h("p", { class: "fine" }, h("a", { href: link }, `${groupOf(one.job_id)}:${one.job_id.split(":")[2]}, ${where}`), ` · task ${one.task_id} · reward ${fixed(one.reward)} · `, h("a", { href: to.group(run, one.group_id) }, "group")),
    h("pre", { class: "text" }, letters.slice(0, start).join(""), h("mark", {}, letters.slice(start, end).join("")), letters.slice(end).join("")));
}
