// The pools: their backends by load, and how far each is with the announced policy.

import { get } from "../api.js";
import { badge, bar, facts, h, heading, section, table } from "../dom.js";
import { whole } from "../format.js";

export const title = () => "Backends";
export const topic = () => "";
export const load = (_, signal) => get("pools", { signal });

export function view({ pools }) {
  if (!pools.length) return [heading("Backends"), h("p", { class: "empty" }, "No backend has joined a pool: POST /v1/pools/NAME/backends, or prorl-mq up --backend URL.")];
  return [heading("Backends"), ...pools.map(pool)];
}

function pool({ policy, backends }) {
  const far = new Map(policy.backends.map((each) => [each.address, each]));
  const most = Math.max(1, ...backends.map((each) => each.in_flight));
  const columns = [
    { head: "Backend", kind: "main", cell: (row) => row.address },
    { head: "State", cell: (row) => badge(row.state) },
    { head: "Health", cell: (row) => badge(row.alive ? (row.breaker === "closed" ? "alive" : row.breaker) : "dead") },
    { head: "In flight", kind: "num", cell: (row) => (row.limit ? `${row.in_flight}/${row.limit}` : whole(row.in_flight)) },
    { head: "Load", cell: (row) => bar("Jobs in flight", [{ name: "jobs", count: row.in_flight, state: "running" }], row.limit ?? most) },
    { head: "Serves", kind: "num", cell: (row) => row.version ?? "–" },
    { head: "Update", cell: (row) => far.get(row.address)?.step ?? "–" },
    { head: "Protocol", kind: "wide", cell: (row) => row.protocol ?? "–" },
    { head: "Model", kind: "wide", cell: (row) => row.model ?? "–" },
    { head: "Note", kind: "wide words", cell: (row) => far.get(row.address)?.error ?? row.note ?? "–" },
  ];
  return section(`Pool ${policy.pool}`,
    facts([["Announced version", policy.version ?? "none"], ["Mode", policy.mode], ["Jobs in flight", whole(backends.reduce((sum, each) => sum + each.in_flight, 0))]]),
    table(`Backends of pool ${policy.pool}`, columns, backends, "No backend."));
}
