// Elements made of data. Text goes in as text alone: nothing here or elsewhere parses HTML.

export function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false).map((each) => (typeof each === "string" ? visible(each) : each)));
  return made;
}

// Characters that reorder what follows them, or that nobody sees and a model reads, are shown by their numbers. A text
// node that is handed over as one stays what it is.
const HIDDEN = /[\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}]/gu;
export const visible = (text) => text.replace(HIDDEN, (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase()}⟩`);

// Makes `parent` look like `wanted` and keeps the elements that are there already, and so focus, selection and scroll.
// Listeners stay those of the first rendering: what is rendered again has links, and no buttons of its own.
export function become(parent, wanted) {
  const old = [...parent.childNodes];
  wanted.forEach((fresh, place) => {
    const there = old[place];
    if (!there) parent.append(fresh);
    else if (there.nodeType !== fresh.nodeType || there.nodeName !== fresh.nodeName) there.replaceWith(fresh);
    else if (there.nodeType === Node.TEXT_NODE) {
      if (there.data !== fresh.data) there.data = fresh.data;
    } else {
      copyAttributes(there, fresh);
      become(there, [...fresh.childNodes]);
    }
  });
  old.slice(wanted.length).forEach((left) => left.remove());
}

function copyAttributes(there, fresh) {
  for (const { name } of [...there.attributes]) if (!fresh.hasAttribute(name)) there.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (name === "style") there.style.cssText = fresh.style.cssText;
    else if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  }
}

// A table in a frame that scrolls by itself on narrow screens, also by keyboard. A column is {head, cell, kind}: `kind`
// is num (to the right), wide (left out where there is no room), or main (the header of its row).
export function table(label, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const head = columns.map((one) => h("th", { scope: "col", class: one.kind }, one.head));
  const body = rows.map((row) =>
    h("tr", { class: row.current ? "current" : null }, columns.map((one) =>
      one.kind?.includes("main")
        ? h("th", { scope: "row", class: one.kind }, one.cell(row))
        : h("td", { class: one.kind }, one.cell(row)))));
  return h("div", { class: "frame", role: "region", "aria-label": label, tabindex: "0" },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function badge(state) {
  return h("span", { class: "badge", "data-state": state }, String(state).replaceAll("_", " "));
}

// A bar of parts, each {name, count, state}, as shares of `whole`. Its text says the same.
export function bar(label, parts, whole) {
  const shown = parts.filter((part) => part.count > 0);
  const text = `${label}: ${shown.map((part) => `${part.count} ${part.name}`).join(", ") || "nothing"} of ${whole}`;
  return h("div", { class: "stack", role: "img", "aria-label": text }, shown.map((part) =>
    h("span", { "data-state": part.state, style: { width: `${(100 * part.count) / Math.max(1, whole)}%` } })));
}

export function crumbs(...links) {
  return h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("ol", {}, links.map(([text, href]) =>
    h("li", {}, href ? h("a", { href }, text) : h("span", { "aria-current": "page" }, text)))));
}

export function heading(text, ...beside) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, text), ...beside);
}
