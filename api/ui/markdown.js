// Markdown as elements: marked reads it, and each of its tokens becomes an element here. HTML in it is shown as text.

import { ansi } from "./ansi.js";
import { h } from "./dom.js";
import { lexer } from "./vendor/marked.js";

export const MOST = 16_000; // characters; what is longer is shown as it is
const MOST_DIFF = 200_000;
const DEEPEST = 32;

export function markdown(text) {
  return h("div", { class: "markdown" }, blocks(lexer(text, { gfm: true, breaks: true })));
}

// Lists and quotes in one another, deeper than people read and browsers lay out, are shown as they are.
const blocks = (tokens, depth = 0) => tokens.map((token) => block(token, depth));

function block(token, depth) {
  if (depth > DEEPEST) return h("p", {}, token.raw);
  switch (token.type) {
    case "space": case "def": return null;
    case "heading": return h("p", { class: "head" }, inline(token.tokens));
    case "paragraph": return h("p", {}, inline(token.tokens));
    case "text": return token.tokens ? h("p", {}, inline(token.tokens)) : h("p", {}, token.text);
    case "code": return code(token.text, token.lang);
    case "blockquote": return h("blockquote", {}, blocks(token.tokens, depth + 1));
    case "list": return h(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== "" ? token.start : null }, token.items.map((one) => h("li", {}, blocks(one.tokens, depth + 1))));
    case "checkbox": return token.checked ? "☑ " : "☐ ";
    case "hr": return h("hr");
    case "table": return grid(token);
    default: return h("p", {}, token.raw);
  }
}

function grid(token) {
  const row = (cells, tag) => h("tr", {}, cells.map((cell) => h(tag, {}, inline(cell.tokens))));
  return h("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "table" },
    h("table", {}, h("thead", {}, row(token.header, "th")), h("tbody", {}, token.rows.map((cells) => row(cells, "td")))));
}

function inline(tokens) {
  return (tokens ?? []).map((token) => {
    switch (token.type) {
      case "strong": return h("strong", {}, inline(token.tokens));
      case "em": return h("em", {}, inline(token.tokens));
      case "del": return h("del", {}, inline(token.tokens));
      case "codespan": return h("code", {}, token.text);
      case "br": return h("br");
      case "escape": return token.text;
      case "link": return link(token);
      case "text": return token.tokens ? inline(token.tokens) : token.text;
      default: return token.raw; // images and HTML among them
    }
  });
}

// An agent may write any address: where it leads is said beside its text, and only the web is linked to.
function link(token) {
  const shown = inline(token.tokens);
  if (!/^https?:\/\//i.test(token.href)) return token.raw;
  return h("span", {}, h("a", { href: token.href, rel: "noreferrer noopener", target: "_blank" }, shown), token.raw === token.href ? null : ` (${token.href})`);
}

export const isDiff = (text) => /^(diff --git |--- \S[^\n]*\n\+\+\+ )/.test(text);

// A block of code; a diff is coloured by line.
export function code(text, language) {
  const diff = (language === "diff" || language === "patch" || isDiff(text)) && text.length <= MOST_DIFF;
  return h("pre", { class: "code", "data-language": language || null }, diff ? lines(text) : ansi(text));
}

function lines(text) {
  return text.split("\n").map((line) => {
    const kind = /^(\+\+\+|---|diff |index )/.test(line) ? "file" : line.startsWith("+") ? "more" : line.startsWith("-") ? "less" : line.startsWith("@@") ? "place" : null;
    return h("span", { class: "line", "data-diff": kind }, `${line}\n`);
  });
}
