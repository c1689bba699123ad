// One group: its samples and how they stand to each other.

import { actions } from "../actions.js";
import { get, id, viewing } from "../api.js";
import { badge, crumbs, facts, h, heading, section, table } from "../dom.js";
import { fixed, runOf, seconds, to, whole } from "../format.js";
import { rewards } from "./groups_table.js";

const OPEN = new Set(["waiting", "running", "due", "paused", "parked"]);

export const title = ([group]) => `Group ${group}`;
export const topic = ([group]) => group;
export const load = ([group], signal) => get(`groups/${id(group)}`, { signal });

export function view({ summary, samples, samples_wanted: wanted }, [group]) {
  const run = runOf(group);
  const told = samples.filter((sample) => sample.record?.trajectory).map((sample) => sample.index);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [summary.batch_id, to.batch(run, summary.batch_id)], [summary.group_id]),
    heading(`Group ${summary.group_id}`, badge(summary.state), summary.archived ? badge("archived") : null),
    !viewing && OPEN.has(summary.state) && actions("group", group, "cancel"),
    summary.reason && h("p", { class: "why" }, summary.reason),
    facts([
      ["Task", summary.task_id || "–"],
      ["Data source", summary.data_source || "–"],
      ["Samples", whole(summary.n)],
      ["Ended", whole(summary.ended)],
      wanted ? ["Not begun", whole(wanted)] : null,
      ["Rewards", rewards(summary.rewards)],
      ["Mean", fixed(summary.mean)],
      ["Spread", fixed(summary.std)],
      ["Policy version", summary.policy_version ?? "–"],
    ]),
    told.length > 1 && h("p", {}, h("a", { class: "button", href: to.compare(group, told.slice(0, 2)) }, "Compare samples side by side")),
    section("Samples", samplesTable(samples)),
  ].filter(Boolean);
}

function samplesTable(samples) {
  const of = (field) => (sample) => sample.record?.[field];
  const columns = [
    { head: "Sample", kind: "main", cell: (sample) => h("a", { href: to.job(sample.job_id) }, sample.index) },
    { head: "State", cell: (sample) => [badge(sample.state), sample.record?.replaced ? " replaced" : null] },
    { head: "Trajectory", cell: (sample) => (of("trajectory")(sample) ? h("a", { href: to.trajectory(sample.job_id), "aria-label": `turns of sample ${sample.index}` }, "turns") : sample.stage === "run" ? h("a", { href: to.live(sample.job_id), "aria-label": `turns so far of sample ${sample.index}` }, "so far") : "–") },
    { head: "Stage", cell: (sample) => sample.stage ?? "–" },
    { head: "Reward", kind: "num", cell: (sample) => fixed(of("reward")(sample)) },
    { head: "Advantage", kind: "num", cell: (sample) => fixed(sample.advantage) },
    { head: "Turns", kind: "num", cell: (sample) => whole(of("turns")(sample)) },
    { head: "Tool calls", kind: "num wide", cell: (sample) => whole(of("tool_calls")(sample)) },
    { head: "Tokens", kind: "num", cell: (sample) => whole(of("response_tokens")(sample)) },
    { head: "Run time", kind: "num wide", cell: (sample) => seconds(of("seconds")(sample)?.run) },
    { head: "Attempts", kind: "num wide", cell: (sample) => whole(sample.attempt) },
    { head: "Stopped by", kind: "wide", cell: (sample) => of("truncated_by")(sample) ?? of("stop_reason")(sample) ?? of("error")(sample)?.type ?? "–" },
  ];
  return table("Samples", columns, samples, "No sample has begun.");
}
