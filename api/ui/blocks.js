// Texts as people read them: messages as markdown, outputs as a terminal shows them, arguments by name. All of them
// change to what was written, byte for byte, when the page is asked for raw texts.

import { ansi } from "./ansi.js";
import { h } from "./dom.js";
import { whole } from "./format.js";
import { MOST, code, isDiff, markdown } from "./markdown.js";

const MOST_SHOWN = 500_000; // characters that are laid out; a browser takes minutes for some millions
const FOLDED = 16; // lines of a result that are shown at first
const DEEPEST = 32; // levels of an argument that are indented
const RAW = "prorl-raw";

const isRaw = () => sessionStorage.getItem(RAW) === "1";

// A button that changes all texts below an element.
export function rawButton(place) {
  const button = h("button", { type: "button", "aria-pressed": String(isRaw()), onclick: () => {
    sessionStorage.setItem(RAW, isRaw() ? "0" : "1");
    button.setAttribute("aria-pressed", String(isRaw()));
    for (const each of place().querySelectorAll(".block")) each.dispatchEvent(new CustomEvent("raw"));
  } }, "Raw texts");
  return button;
}

// `kind`: message, result or arguments. `more` fetches the whole text; without it the cut is only told. *Copy* stands
// beside `title`; without one it lies on the text.
export function text(part, more, kind = "message", title = null) {
  let now = part.text;
  let open = false;
  let cut = false;
  const place = h("div", { class: "block" });
  const paint = () => place.replaceChildren(...[shown(now, kind, open)].flat(), ...fold(), ...(cut ? [h("p", { class: "fine" }, `the first ${whole(now.length)} of ${whole(part.characters)} characters; the trajectory as JSON has all`)] : []));
  const fold = () => {
    const lines = kind === "result" && !isRaw() ? count(now) : 0;
    if (lines <= FOLDED) return [];
    return [h("p", {}, h("button", { type: "button", "aria-expanded": String(open), onclick: () => { open = !open; paint(); place.querySelector("button").focus(); } },
      open ? "Fold" : `Show all ${whole(lines)} lines`))];
  };
  place.addEventListener("raw", paint);
  paint();
  const complete = part.characters <= [...part.text].length;
  const copied = copyButton(complete || !more ? async () => part.text : more);
  const head = title ? [h("div", { class: "titled" }, title, copied), place] : [h("div", { class: "untitled" }, place, copied)];
  if (complete) return head;
  if (!more) return [...head, h("p", { class: "fine" }, `${whole(part.characters)} characters in all`)];
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    try {
      const all = await more();
      now = all.slice(0, MOST_SHOWN);
      cut = now.length < all.length;
      open = true;
      paint();
      button.remove();
    } catch (error) {
      button.disabled = false;
      button.textContent = `${error.message}: try again`;
    }
  } }, `Show all ${whole(part.characters)} characters`);
  return [...head, h("p", {}, button)];
}

// What a reward rests on, by name: of a judge its prompt and its votes.
export const evidence = (found) => Object.entries(found ?? {}).map(([name, value]) =>
  h("div", { class: "message" }, h("p", { class: "role" }, name), h("pre", { class: "text" }, typeof value === "string" ? value : JSON.stringify(value, null, 2))));

// Copies the whole text as it was written. Browsers have no clipboard for plain HTTP from another machine.
function copyButton(all) {
  if (!navigator.clipboard) return null;
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(await all());
      button.textContent = "Copied";
    } catch (error) {
      button.textContent = `${error.message}: try again`;
    }
  } }, "Copy");
  return button;
}

const count = (lines) => lines.trimEnd().split("\n").length;

// Whatever a reader does not bear, such as a thousand quotes in one another, is shown as it was written.
function shown(now, kind, open) {
  if (!now) return h("pre", { class: "text" }, "(nothing)");
  if (isRaw()) return h("pre", { class: "text" }, document.createTextNode(now));
  try {
    return read(now, kind, open);
  } catch {
    return h("pre", { class: "text" }, now);
  }
}

function read(now, kind, open) {
  if (kind === "arguments") return named(now);
  if (kind === "message") return now.length > MOST ? h("pre", { class: "text" }, ansi(now)) : h("div", { class: "text" }, markdown(now));
  const lines = now.trimEnd().split("\n");
  const some = open || lines.length <= FOLDED ? now : lines.slice(0, FOLDED).join("\n");
  return isDiff(some) ? code(some, "diff") : h("pre", { class: "text" }, ansi(some));
}

// Arguments of a call by name, each text with its own line breaks. What is no JSON is shown as it is.
function named(now) {
  let found = null;
  try { found = JSON.parse(now); } catch { return h("pre", { class: "text" }, unescaped(now)); }
  if (found === null || typeof found !== "object" || Array.isArray(found)) return h("pre", { class: "text" }, readable(found));
  const entries = Object.entries(found);
  if (!entries.length) return h("p", { class: "fine" }, "no arguments");
  return h("dl", { class: "arguments" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("pre", { class: "text" }, readable(value))))));
}

const readable = (value) => (typeof value === "string" ? ansi(value) : JSON.stringify(value, null, deeper(value, DEEPEST) ? 0 : 2));

// Indented, a depth of some thousands takes its square in blanks.
const deeper = (value, left) => value !== null && typeof value === "object" && (!left || Object.values(value).some((each) => deeper(each, left - 1)));

// Of JSON that was cut or that a model wrote badly: its line breaks all the same.
const unescaped = (cut) => (/^\s*[{[]/.test(cut) ? cut.replaceAll("\\n", "\n").replaceAll("\\t", "\t").replaceAll('\\"', '"') : cut);
