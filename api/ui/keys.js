// Keys for the whole page: j and k go through what a page lists, / searches, e unfolds, u goes up, ? tells them.

import { h } from "./dom.js";
import { to } from "./format.js";

const OFF = "prorl-keys-off";
const LISTED = ".turn h3, .hits a:first-child, tbody th a";
const TOLD = { j: "next turn, row or hit", k: "the one before", "/": "search", e: "unfold everything, or fold it again", u: "up: to what this belongs to", "?": "this list" };

const off = () => localStorage.getItem(OFF) === "1";

export function keys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    if (off() && event.key !== "?") return;
    const act = ACTS[event.key];
    if (act?.() !== undefined) event.preventDefault();
  });
}

const ACTS = { j: () => step(1), k: () => step(-1), "/": search, e: unfold, u: up, "?": help };

function step(by) {
  const found = [...document.querySelectorAll(LISTED)].filter((each) => each.checkVisibility());
  if (!found.length) return undefined;
  const now = found.findIndex((each) => each === document.activeElement || each.closest("article")?.contains(document.activeElement));
  const next = found[now < 0 ? (by > 0 ? 0 : found.length - 1) : Math.min(found.length - 1, Math.max(0, now + by))];
  next.focus();
  (next.closest("article") ?? next).scrollIntoView({ block: next.closest("article") ? "start" : "nearest" });
  return next;
}

function search() {
  const field = document.getElementById("search") ?? document.getElementById("by-text");
  if (field) { field.focus(); return field; }
  const run = document.querySelector('.crumbs a[href^="#/runs/"]')?.getAttribute("href").slice("#/runs/".length);
  if (!run) return undefined;
  location.hash = to.explore(decodeURIComponent(run));
  return run;
}

function unfold() {
  const folded = [...document.querySelectorAll('main details:not([open]), main .block button[aria-expanded="false"]')];
  const open = folded.length ? folded : [...document.querySelectorAll('main details[open], main .block button[aria-expanded="true"]')];
  for (const each of open) { if (each.tagName === "DETAILS") each.open = folded.length > 0; else each.click(); }
  return open;
}

function up() {
  const links = document.querySelectorAll(".crumbs a");
  links[links.length - 1]?.click();
  return links;
}

function help() {
  const toggle = h("button", { type: "button", onclick: () => {
    if (off()) localStorage.removeItem(OFF); else localStorage.setItem(OFF, "1");
    toggle.textContent = off() ? "Switch keys on" : "Switch keys off";
  } }, off() ? "Switch keys on" : "Switch keys off");
  const close = h("button", { type: "button", onclick: () => box.close() }, "Close");
  const box = h("dialog", { class: "keys", "aria-labelledby": "keys-title", onclose: () => box.remove() },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl", {}, Object.entries(TOLD).map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)))),
    h("p", { class: "pager" }, close, toggle));
  document.body.append(box);
  box.showModal();
  return box;
}
