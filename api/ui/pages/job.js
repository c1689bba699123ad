// One job: where it is, why it waits, and every state change with what it took.

import { get, id } from "../api.js";
import { badge, crumbs, facts, h, heading, section, table } from "../dom.js";
import { clock, groupOf, runOf, seconds, to } from "../format.js";

export const title = ([job]) => `Job ${job}`;
export const topic = ([job]) => job;

export async function load([job], signal) {
  const [status, { events }] = await Promise.all([get(`jobs/${id(job)}`, { signal }), get(`jobs/${id(job)}/events`, { signal })]);
  return { status, events };
}

export function view({ status, events }, [job]) {
  const run = runOf(job);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [status.batch_id, to.batch(run, status.batch_id)],
      [status.group_id, to.group(run, status.group_id)], [`sample ${job.split(":")[2]}`]),
    heading(`Job ${job}`, badge(status.outcome ?? status.state)),
    h("p", { class: "why" }, status.why),
    facts([
      ["Stage", status.stage ?? "–"],
      ["Attempts that failed", status.attempt],
      ["Worker", status.owner ?? "–"],
      ["Group", h("a", { href: to.group(run, groupOf(job).split(":")[1]) }, status.group_id)],
      ["Trajectory", h("a", { href: to.trajectory(job) }, "turns and tokens")],
    ]),
    section("Time line", timeline(events, status.state === "done")),
  ];
}

function timeline(events, done) {
  if (!events.length) return h("p", { class: "empty" }, "Nothing has happened yet: it is no job so far.");
  const first = events[0].ms;
  const last = events.at(-1).ms;
  const whole = Math.max(1, last - first);
  const rows = events.map((event, place) => ({ ...event, until: events[place + 1]?.ms ?? (done ? event.ms : null) }));
  const columns = [
    { head: "Time", kind: "num", cell: (row) => clock(row.ms) },
    { head: "After", kind: "num", cell: (row) => seconds((row.ms - first) / 1000) },
    { head: "Event", kind: "main", cell: (row) => badge(row.event) },
    { head: "Stage", cell: (row) => row.stage || "–" },
    { head: "Lasted", kind: "num", cell: (row) => (row.until === null ? "until now" : seconds((row.until - row.ms) / 1000)) },
    { head: "Share of the whole", kind: "lane", cell: (row) => lane(row, first, whole) },
    { head: "Worker", kind: "wide", cell: (row) => row.worker || "–" },
    { head: "Detail", kind: "wide words", cell: (row) => row.detail || "–" },
  ];
  return table("Time line", columns, rows, "");
}

function lane(row, first, whole) {
  const until = row.until ?? first + whole;
  const share = Math.max(0.4, (100 * (until - row.ms)) / whole);
  const left = Math.min(99.6, (100 * (row.ms - first)) / whole);
  return h("span", { class: "track", "aria-hidden": "true" },
    h("span", { "data-event": row.event, style: { "margin-left": `${left}%`, width: `${Math.min(share, 100 - left)}%` } }));
}
