// The whole service: its stages, nodes, pools and runs, and what happened last.

import { get } from "../api.js";
import { badge, bar, facts, h, heading, section, table } from "../dom.js";
import { bytes, clock, percent, seconds, to, whole } from "../format.js";

const FEED = 12;
let feed = [];

export const title = () => "Overview";
export const topic = () => "";

export async function load(_, signal) {
  const others = ["pools", "runs", "advice"].map((path) => get(path, { signal }));
  const [now, pools, runs, advice] = await Promise.allSettled([get("overview", { signal }), ...others]);
  if (now.status === "rejected") throw now.reason;
  const missing = [["backends", pools], ["runs", runs], ["advice", advice]].filter(([, part]) => part.status === "rejected");
  return {
    now: now.value, pools: pools.value?.pools ?? [], runs: runs.value?.runs ?? [], advice: advice.value,
    missing: missing.map(([what, part]) => `No ${what} here: ${part.reason.message}`),
  };
}

export function told(kind, data) {
  if (kind === "reset") feed = [];
  if (kind === "changes") feed = [...data.changes.reverse(), ...feed].slice(0, FEED);
}

export function view({ now, pools, runs, advice, missing }) {
  return [
    heading("Overview", h("p", { class: "at" }, `as of ${clock(now.at_ms)}`)),
    h("ol", { class: "stages", "aria-label": "Stages" }, now.stages.map(stage)),
    advice && h("div", { class: "advice", role: "group", "aria-label": "What limits now" }, h("p", {}, h("strong", {}, advice.says)), h("p", {}, advice.change)),
    missing.map((line) => h("p", { class: "why" }, line)),
    now.waits.map((line) => h("p", { class: "why" }, line)),
    numbers(now),
    section("Runs", runsTable(runs)),
    section("Nodes and lanes", nodesTable(now)),
    section("Backends", poolsTable(pools)),
    section("What happened last", events()),
  ];
}

function stage(one) {
  const free = one.workers === 0;
  return h("li", { class: "stage", "data-alarm": free && one.queued > 0 },
    h("h2", {}, one.stage.toUpperCase()),
    h("p", { class: "big" }, h("strong", {}, whole(one.running)), " running"),
    h("p", { class: "big" }, h("strong", {}, whole(one.queued)), " queued"),
    bar("Slots", [{ name: "busy", count: one.busy, state: "running" }], one.slots),
    h("p", { class: "fine" }, free ? "no worker is alive" : `${one.busy} of ${one.slots} slots, ${one.workers} ${one.workers === 1 ? "worker" : "workers"}`),
    h("p", { class: "fine" }, one.oldest_age_s ? `oldest ${seconds(one.oldest_age_s)}` : "nothing waits"));
}

function numbers(now) {
  const rate = (name) => now.rates.per_minute[name] ?? 0;
  const limit = now.memory_limit_bytes;
  return facts([
    ["Groups in backlogs", whole(now.backlog_groups)],
    ["Jobs leased", whole(now.leased)],
    ["Delayed", whole(now.delayed)],
    ["Paused", whole(now.paused)],
    ["Verdicts due", whole(now.due)],
    ["Finished a minute", whole(Math.round(rate("finish")))],
    ["Failed attempts a minute", whole(Math.round(rate("fail") + rate("reap")))],
    ["Redis memory", limit ? `${bytes(now.memory_bytes)} of ${bytes(limit)}, ${percent(now.memory_bytes / limit)}` : bytes(now.memory_bytes)],
  ]);
}

function nodesTable(now) {
  const slots = (stage) => ({
    head: stage.toUpperCase(), kind: "num", cell: (node) => (node.slots[stage] ? `${node.busy[stage] ?? 0}/${node.slots[stage]}` : "–"),
  });
  const columns = [
    { head: "Node", kind: "main", cell: (node) => node.node },
    slots("init"), slots("run"), slots("eval"),
    { head: "Lane queued", kind: "num", cell: (node) => whole(node.lane_queued) },
    { head: "Lane running", kind: "num", cell: (node) => whole(node.lane_running) },
    { head: "Workers", kind: "num wide", cell: (node) => whole(node.workers) },
    { head: "Sandbox", kind: "wide", cell: (node) => node.sandbox },
  ];
  const more = now.nodes_in_all - now.nodes.length;
  return [table("Nodes and lanes", columns, now.nodes, "No worker is alive: start prorl-worker."), more > 0 && h("p", { class: "fine" }, `and ${more} nodes that do less`)];
}

export function poolsTable(pools) {
  const rows = pools.flatMap((pool) => pool.backends.map((backend) => ({ pool: pool.policy.pool, ...backend })));
  const columns = [
    { head: "Backend", kind: "main", cell: (row) => row.address },
    { head: "Pool", cell: (row) => row.pool },
    { head: "In flight", kind: "num", cell: (row) => whole(row.in_flight) },
    { head: "Version", kind: "num", cell: (row) => row.version ?? "–" },
    { head: "State", cell: (row) => badge(row.alive ? (row.breaker === "closed" ? row.state : row.breaker) : "dead") },
    ...inCells(rows),
  ];
  return table("Backends", columns, rows, "No backend has joined a pool.");
}

export function runsTable(runs) {
  const columns = [
    { head: "Run", kind: "main", cell: (run) => h("a", { href: to.run(run.run_id) }, run.run_id) },
    { head: "Backlog groups", kind: "num", cell: (run) => whole(run.backlog) },
    { head: "Jobs in flight", kind: "num", cell: (run) => whole(run.in_flight) },
    { head: "Un-acked groups", kind: "num", cell: (run) => whole(run.unacked_groups) },
    { head: "Un-acked bytes", kind: "num wide", cell: (run) => bytes(run.unacked_bytes) },
    { head: "Weight", kind: "num wide", cell: (run) => run.settings.weight ?? 1 },
    ...inCells(runs),
    { head: "Why its groups wait", kind: "wide words", cell: (run) => run.why || "–" },
  ];
  return table("Runs", columns, runs, "No run in the last week: submit a batch.");
}

// The cell of each row, where a router answers for several.
const inCells = (rows) => (rows.some((row) => row.cell) ? [{ head: "Cell", cell: (row) => row.cell ?? "–" }] : []);

function events() {
  const columns = [
    { head: "Time", kind: "num", cell: (row) => clock(row.ms) },
    { head: "Event", cell: (row) => badge(row.event) },
    { head: "Job", kind: "main", cell: (row) => h("a", { href: to.job(row.job_id) }, row.job_id) },
    { head: "Stage", cell: (row) => row.stage },
    { head: "By", kind: "wide", cell: (row) => row.worker },
    { head: "Detail", kind: "wide words", cell: (row) => row.detail },
  ];
  return table("Newest events", columns, feed, "Nothing since this page was opened.");
}
