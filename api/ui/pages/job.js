// One job: where it is, why it waits, its attempts, and every state change with what it took.

import { actions } from "../actions.js";
import { get, id, viewing } from "../api.js";
import { evidence } from "../blocks.js";
import { badge, crumbs, facts, h, heading, section, table } from "../dom.js";
import { clock, groupOf, runOf, seconds, to } from "../format.js";

export const title = ([job]) => `Job ${job}`;
export const topic = ([job]) => job;

export const load = ([job], signal) => get(`jobs/${id(job)}/timeline`, { signal });

export function view({ status, now_ms, cut, changes, attempts }, [job]) {
  const run = runOf(job);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [status.batch_id, to.batch(run, status.batch_id)],
      [status.group_id, to.group(run, status.group_id)], [`sample ${job.split(":")[2]}`]),
    heading(`Job ${job}`, badge(status.outcome ?? status.state), status.archived ? badge("archived") : null),
    !viewing && status.state !== "done" && actions("job", job, status.state === "paused" ? "resume" : "pause", "cancel"),
    h("p", { class: "why" }, status.why),
    status.note && section("What its grader said", [h("p", {}, status.note), evidence(status.evidence)]),
    status.error && section("Error", [h("p", {}, `${status.error.type} (${status.error.cause ?? "worker"}): ${status.error.message}`), h("pre", {}, status.error.traceback ?? "")]),
    facts([
      ["Stage", status.stage ?? "–"],
      ["Attempts that failed", status.attempt],
      ["Worker", status.owner ?? "–"],
      ["Group", h("a", { href: to.group(run, groupOf(job).split(":")[1]) }, status.group_id)],
      ["Trajectory", status.stage === "run" ? h("a", { href: to.live(job) }, "turns so far") : h("a", { href: to.trajectory(job) }, "turns and tokens")],
    ]),
    section("Attempts", tries(attempts)),
    section("Time line", cut ? h("p", { class: "empty" }, "Older events are gone.") : "", timeline(changes, now_ms)),
  ];
}

function tries(attempts) {
  if (!attempts.length) return h("p", { class: "empty" }, "No worker has had it yet.");
  const columns = [
    { head: "Stage", kind: "main", cell: (row) => row.stage },
    { head: "Number", kind: "num", cell: (row) => row.number },
    { head: "Waited", kind: "num", cell: (row) => seconds(row.waited_s) },
    { head: "Held", kind: "num", cell: (row) => seconds(row.held_s) },
    { head: "Ended by", cell: (row) => (row.ended_by ? badge(row.ended_by) : "under way") },
    { head: "Worker", kind: "wide", cell: (row) => row.worker },
    { head: "Sandbox", kind: "wide words", cell: (row) => row.sandbox ?? "–" },
    { head: "Backends", kind: "wide words", cell: (row) => row.backends.join(", ") || "–" },
  ];
  return table("Attempts", columns, attempts, "");
}

function timeline(changes, now) {
  if (!changes.length) return h("p", { class: "empty" }, "Nothing has happened yet: it is no job so far.");
  const first = changes[0].ms;
  const last = changes.at(-1);
  const whole = Math.max(1, (last.state === "done" ? last.ms : now) - first);
  const columns = [
    { head: "Time", kind: "num", cell: (row) => clock(row.ms) },
    { head: "After", kind: "num", cell: (row) => seconds((row.ms - first) / 1000) },
    { head: "Event", kind: "main", cell: (row) => badge(row.event) },
    { head: "Stage", cell: (row) => row.stage || "–" },
    { head: "Lasted", kind: "num", cell: (row) => (row.seconds === null ? "–" : seconds(row.seconds)) },
    { head: "Share of the whole", kind: "lane", cell: (row) => lane(row, first, whole) },
    { head: "Worker", kind: "wide", cell: (row) => row.worker || "–" },
    { head: "Detail", kind: "wide words", cell: (row) => row.detail || "–" },
  ];
  return table("Time line", columns, changes, "");
}

function lane(row, first, whole) {
  const share = Math.max(0.4, (100 * 1000 * (row.seconds ?? 0)) / whole);
  const left = Math.min(99.6, (100 * (row.ms - first)) / whole);
  return h("span", { class: "track", "aria-hidden": "true" },
    h("span", { "data-event": row.event, style: { "margin-left": `${left}%`, width: `${Math.min(share, 100 - left)}%` } }));
}
