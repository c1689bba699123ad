// Shows the page that the address names, and looks again when the service says that something has changed.

import { listen, permit } from "./actions.js";
import { Refused, token, viewing } from "./api.js";
import { become, h, heading } from "./dom.js";
import { keys } from "./keys.js";
import { follow } from "./live.js";
import * as backends from "./pages/backends.js";
import * as batch from "./pages/batch.js";
import * as charts from "./pages/charts.js";
import * as compare from "./pages/compare.js";
import * as explore from "./pages/explore.js";
import * as failures from "./pages/failures.js";
import * as group from "./pages/group.js";
import * as pair from "./pages/pair.js";
import * as list from "./pages/groups_list.js";
import * as job from "./pages/job.js";
import * as liveTurns from "./pages/live_turns.js";
import * as overview from "./pages/overview.js";
import * as run from "./pages/run.js";
import * as runs from "./pages/runs.js";
import * as trajectory from "./pages/trajectory.js";
import { signIn } from "./pages/sign_in.js";

// A page has `load(params, signal)`, `view(data, params)`, `title(params)` and, if it is live, `topic(params)`. One that
// has `mount(data, params, signal)` renders itself once and keeps its own elements; `update(data)` brings them up to date.
const PAGES = { "": overview, runs, run, batches: batch, groups: group, lists: list, charts, explore, failures, compare, pair, jobs: job, live: liveTurns, trajectories: trajectory, backends };
// How many names the address of a page has at least.
const NAMES = { run: 1, batches: 1, groups: 1, lists: 2, charts: 1, explore: 1, failures: 1, compare: 1, pair: 2, jobs: 1, live: 1, trajectories: 1 };
if (viewing) {
  PAGES[""] = runs;
  delete PAGES.backends;
}
const AGAIN_MS = 1_000; // between two looks at least
const TRAILING_MS = 2_000; // what follows a change without an event of its own

const main = document.getElementById("main");
const live = document.getElementById("live");
const signOut = document.getElementById("sign-out");
let shown = new AbortController();
let painted = false;

function named() {
  const [, kind = "", ...params] = location.hash.split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const name = kind === "runs" && params.length ? "run" : kind;
  const complete = Object.hasOwn(PAGES, name) && params.filter(Boolean).length >= (NAMES[name] ?? 0);
  return { name, page: complete ? PAGES[name] : null, params };
}

async function show() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const { name, page, params } = named();
  mark(name);
  live.textContent = "";
  signOut.hidden = !token.get();
  main.setAttribute("aria-busy", "true");
  if (!page) return paint("Nothing here", [heading("Nothing here"), h("p", {}, "There is no such page: choose one above.")]);
  try {
    const data = await page.load(params, signal);
    if (signal.aborted) return;
    if (page.mount) paint(page.title(params), page.mount(data, params, signal));
    else paint(page.title(params), nodes(page, data, params));
    if (page.topic && !viewing) watch(page, params, signal);
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

// A link that the service prints at its start has the token in its fragment, which no request carries. The address does
// not keep it, nor does the history.
function arrive() {
  const [, given, rest] = /^#token=([^/]+)(.*)$/.exec(location.hash) ?? [];
  if (!given || viewing) return;
  try { token.set(decodeURIComponent(given)); } catch { token.set(given); }
  history.replaceState(null, "", `${location.pathname}${rest && `#${rest}`}`);
}

// With another token, or with none.
function enter() {
  if (!viewing) permit();
  show();
}

function paint(title, nodes) {
  document.title = `${title} · prorl_mq`;
  main.replaceChildren(...nodes);
  main.setAttribute("aria-busy", "false");
  // At the first page the focus stays where it is: before the link that skips to the content.
  if (painted) main.querySelector("h1")?.focus({ preventScroll: true });
  if (painted) scrollTo(0, 0);
  painted = true;
}

function failed(error) {
  if (error instanceof Refused && error.status === 401) {
    const wrong = token.get() !== null;
    token.clear();
    signOut.hidden = true;
    return paint("Sign in", signIn(wrong, (text) => { token.set(text); enter(); }));
  }
  const missing = error instanceof Refused && error.status === 404;
  const title = missing ? "Not there" : "The service did not answer";
  paint(title, [heading(title), h("p", { role: "alert" }, error.message), h("p", {}, h("button", { type: "button", onclick: show }, "Try again"))]);
}

function watch(page, params, signal) {
  let due = null;
  let running = false;
  let again = false;

  async function look() {
    due = null;
    if (document.hidden) return;
    if (running) { again = true; return; }
    running = true;
    try {
      const data = await page.load(params, signal);
      if (signal.aborted) return;
      if (page.update) page.update(data);
      else become(main, nodes(page, data, params));
    } catch (error) {
      if (error instanceof Refused && error.status === 401 && !signal.aborted) failed(error);
    } finally {
      running = false;
      if (again && !signal.aborted) { again = false; soon(AGAIN_MS); }
    }
  }
  const soon = (ms) => { due ??= setTimeout(look, ms); };
  let trailing = null;
  const told = (kind, data) => {
    page.told?.(kind, data);
    soon(AGAIN_MS / 2);
    clearTimeout(trailing);
    if (kind === "changes") trailing = setTimeout(look, TRAILING_MS);
  };
  const state = (text) => { live.textContent = text; live.dataset.state = text; };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(0); }, { signal });
  signal.addEventListener("abort", () => { clearTimeout(due); clearTimeout(trailing); });
  follow(page.topic(params), { signal, told, state });
}

// A view leaves out what there is nothing of: null, undefined, "" and false are no nodes.
function nodes(page, data, params) {
  return page.view(data, params).flat().filter(Boolean);
}

function mark(name) {
  const part = { run: "runs", batches: "runs", groups: "runs", lists: "runs", charts: "runs", explore: "runs", failures: "runs", compare: "runs", pair: "runs", jobs: "runs", live: "runs", trajectories: "runs", "": "overview" };
  for (const link of document.querySelectorAll("nav [data-page]")) {
    if (link.dataset.page === (part[name] ?? name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

if (viewing) {
  for (const link of document.querySelectorAll('nav [data-page="overview"], nav [data-page="backends"]')) link.remove();
  document.querySelector(".brand").setAttribute("href", "#/runs");
}
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
signOut.addEventListener("click", () => { token.clear(); enter(); });
addEventListener("hashchange", () => { arrive(); show(); });
listen(main, show);
keys();
arrive();
enter();
