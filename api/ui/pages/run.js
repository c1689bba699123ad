// One run: its numbers, its newest batches, its groups.

import { actions } from "../actions.js";
import { get, id, viewing } from "../api.js";
import { badge, bar, crumbs, facts, h, heading, section, table } from "../dom.js";
import { bytes, moment, percent, to, whole } from "../format.js";
import { archived, archivedSection, groupsSection } from "./groups_table.js";
import { views } from "./run_views.js";

export const title = ([run]) => `Run ${run}`;
export const topic = ([run]) => run;

export async function load([run], signal) {
  const path = `runs/${id(run)}`;
  const kept = await archived(run, null, signal);
  const status = viewing ? null : await get(path, { signal }).catch((error) => forgotten(error, kept));
  if (!status) return { status, kept };
  const empty = (error) => { if (error.status === 404) return null; throw error; };
  const [batches, open, closed] = await Promise.all([
    get(`${path}/batches`, { signal }).catch(empty),
    get(`${path}/groups`, { signal, query: { state: "open", limit: 25 } }).catch(empty),
    get(`${path}/groups`, { signal, query: { state: "closed", limit: 25 } }).catch(empty),
  ]);
  return { status, batches: batches?.batches ?? [], open: open ?? { groups: [] }, closed: closed ?? { groups: [] }, kept };
}

// A run of which the archive alone knows.
function forgotten(error, kept) {
  if (error.status === 404 && kept.groups.length) return null;
  throw error;
}

export function view({ status, batches, open, closed, kept }, [run]) {
  if (!status) return [crumbs(["Runs", "#/runs"], [run]), heading(`Run ${run}`, viewing ? null : badge("archived")), views(run, "run"), archivedSection(run, "", kept)];
  const quota = (name) => (status.settings[name] ? ` of ${whole(status.settings[name])}` : "");
  return [
    crumbs(["Runs", "#/runs"], [run]),
    heading(`Run ${run}`, status.paused_until_ms ? badge("paused") : null),
    actions("run", run, status.paused_until_ms ? "resume" : "pause", "cancel"),
    views(run, "run"),
    status.why && h("p", { class: "why" }, status.why),
    facts([
      ["Backlog groups", whole(status.backlog)],
      ["Jobs in flight", `${whole(status.in_flight)}${quota("max_jobs")}`],
      ["Un-acked groups", `${whole(status.unacked_groups)}${quota("max_unacked_groups")}`],
      ["Un-acked bytes", bytes(status.unacked_bytes)],
      ["Weight", status.settings.weight ?? 1],
      ...(status.paused_until_ms ? [["Paused until", moment(status.paused_until_ms)]] : []),
    ]),
    section("Newest batches", batchesTable(batches)),
    groupsSection("open", run, "", open),
    groupsSection("closed", run, "", closed),
    archivedSection(run, "", kept),
  ].filter(Boolean);
}

function batchesTable(rows) {
  const columns = [
    { head: "Batch", kind: "main", cell: ({ batch }) => h("a", { href: to.batch(batch.run_id, batch.batch_id) }, batch.batch_id) },
    { head: "Submitted", kind: "wide", cell: ({ submitted_ms: ms }) => moment(ms) },
    { head: "State", cell: ({ batch }) => badge(batch.dapo?.phase ?? (batch.open ? "open" : "closed")) },
    { head: "Groups", kind: "num", cell: ({ batch }) => whole(batch.groups) },
    { head: "Open", kind: "num", cell: ({ batch }) => whole(batch.open) },
    { head: "Progress", cell: ({ batch }) => progress(batch) },
    { head: "Target", kind: "num", cell: ({ batch }) => (batch.dapo ? `${batch.dapo.accepted}/${batch.dapo.target_groups}` : "–") },
    { head: "Acceptance", kind: "num wide", cell: ({ batch }) => percent(batch.dapo?.rate) },
  ];
  return table("Batches", columns, rows, "No batch yet.");
}

export function progress(batch) {
  const { accepted = 0, filtered = 0, failed = 0, ...rest } = batch.verdicts;
  const other = Object.values(rest).reduce((sum, count) => sum + count, 0);
  const parts = [
    { name: "accepted", count: accepted, state: "accepted" },
    { name: "filtered", count: filtered, state: "filtered" },
    { name: "failed", count: failed, state: "failed" },
    { name: "other", count: other, state: "cancelled" },
  ];
  return bar("Groups", parts, batch.groups);
}
