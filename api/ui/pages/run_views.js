// Links between the views of one run.

import { viewing } from "../api.js";
import { h } from "../dom.js";
import { to } from "../format.js";

const VIEWS = { run: "Overview", charts: "Charts", explore: "Groups and search", failures: "Failures" };

export function views(run, now) {
  return h("nav", { class: "views", "aria-label": "Views of the run" }, Object.entries(VIEWS).map(([name, text]) =>
    h("a", { href: to[name](run), "aria-current": name === now ? "page" : null }, viewing && name === "run" ? "Batches and groups" : text)));
}
