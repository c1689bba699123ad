// The runs of a tenant.

import { get } from "../api.js";
import { heading } from "../dom.js";
import { runsTable } from "./overview.js";

export const title = () => "Runs";
export const topic = () => "";
export const load = (_, signal) => get("runs", { signal });
export const view = ({ runs }) => [heading("Runs"), runsTable(runs)];
