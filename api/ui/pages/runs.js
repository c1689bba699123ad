// The runs of a tenant.

import { get, viewing } from "../api.js";
import { h, heading, table } from "../dom.js";
import { to, whole } from "../format.js";
import { runsTable } from "./overview.js";

export const title = () => "Runs";
export const topic = () => "";
export const load = (_, signal) => get("runs", { signal });
export const view = ({ runs, unavailable = [] }) => [
  heading("Runs"),
  unavailable.map((cell) => h("p", { class: "why" }, `cell ${cell} does not answer: its runs are missing here`)),
  viewing ? ended(runs) : runsTable(runs),
];

function ended(runs) {
  const columns = [
    { head: "Run", kind: "main", cell: (run) => h("a", { href: to.run(run.run_id) }, run.run_id) },
    { head: "Groups", kind: "num", cell: (run) => whole(run.groups) },
  ];
  return table("Runs", columns, runs, "There is no run.");
}
