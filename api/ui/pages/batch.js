// One batch: its progress towards its target, and its groups.

import { actions } from "../actions.js";
import { get, id, viewing } from "../api.js";
import { badge, bar, crumbs, facts, h, heading, section, table } from "../dom.js";
import { fixed, percent, runOf, seconds, to, whole } from "../format.js";
import { archived, archivedSection, groupsSection } from "./groups_table.js";
import { progress } from "./run.js";

const SPENT = ["accepted", "filtered_right", "filtered_wrong", "filtered_mixed", "failed", "cancelled", "expired", "refilled"];

export const title = ([batch]) => `Batch ${batch}`;
export const topic = ([batch]) => runOf(batch);

export async function load([batch], signal) {
  const [run, name] = batch.split(":");
  const kept = await archived(run, name, signal);
  if (viewing) return { kept };
  const groups = (state) => get(`runs/${id(run)}/groups`, { signal, query: { state, batch: name, limit: 50 } });
  try {
    const [status, open, closed] = await Promise.all([get(`batches/${id(batch)}`, { signal }), groups("open"), groups("closed")]);
    return { status, open, closed, kept };
  } catch (error) {
    if (error.status === 404 && kept.groups.length) return { kept };
    throw error;
  }
}

export function view({ status, open, closed, kept }, [batch]) {
  if (!status) return old(batch, kept);
  const { run_id: run, batch_id: name, dapo } = status;
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [name]),
    heading(`Batch ${name}`, badge(dapo?.phase ?? (status.open ? "open" : "closed"))),
    status.open > 0 && actions("batch", batch, "cancel"),
    ...(dapo ? target(dapo) : [progress(status)]),
    facts([
      ["Groups", whole(status.groups)],
      ["Open", whole(status.open)],
      ...Object.entries(status.verdicts).map(([verdict, count]) => [verdict[0].toUpperCase() + verdict.slice(1), whole(count)]),
    ]),
    dapo?.report && section("Report", report(dapo.report)),
    groupsSection("open", run, name, open),
    groupsSection("closed", run, name, closed),
    archivedSection(run, name, kept),
  ].filter(Boolean);
}

// A batch of which the archive or a file alone knows.
function old(batch, kept) {
  const [run, name] = batch.split(":");
  return [crumbs(["Runs", "#/runs"], [run, to.run(run)], [name]), heading(`Batch ${name}`, viewing ? null : badge("archived")), archivedSection(run, name, kept)];
}

function target(dapo) {
  const parts = [
    { name: "accepted", count: dapo.accepted, state: "accepted" },
    { name: "in play", count: Math.min(dapo.in_play, Math.max(0, dapo.target_groups - dapo.accepted)), state: "running" },
  ];
  return [
    h("p", { class: "target" }, h("strong", {}, `${dapo.accepted} of ${dapo.target_groups}`), " informative groups"),
    bar("Target", parts, dapo.target_groups),
    facts([
      ["In play", whole(dapo.in_play)],
      ["Drawn", whole(dapo.drawn)],
      ["In the reservoir", whole(dapo.waiting)],
      ["Acceptance, as the next draw sees it", percent(dapo.rate)],
    ]),
  ];
}

function report(found) {
  const rows = SPENT.filter((name) => found[name]?.count).map((name) => ({ name, ...found[name] }));
  const columns = [
    { head: "Groups", kind: "main", cell: (row) => row.name.replaceAll("_", " ") },
    { head: "Count", kind: "num", cell: (row) => whole(row.count ?? 0) },
    { head: "Worker time", kind: "num", cell: (row) => seconds(row.seconds ?? 0) },
    { head: "Sampled tokens", kind: "num", cell: (row) => whole(row.tokens ?? 0) },
  ];
  return [
    facts([
      ["Closed because of", found.reason],
      ["Surplus", found.surplus],
      ["Acceptance", percent(found.acceptance_rate)],
      ["Wasted worker time", percent(found.waste_ratio)],
      ["Carried in, out", `${whole(found.carried_in)}, ${whole(found.carried_out)}`],
      ["Took", seconds(found.seconds)],
    ]),
    table("What the batch cost", columns, rows, "Nothing was spent."),
    found.bias?.length ? h("ul", { class: "bias" }, found.bias.map((each) => h("li", {}, each))) : null,
  ];
}
