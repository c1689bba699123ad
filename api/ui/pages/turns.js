// What turns look like: what the agent said, its tool calls, their results. Long texts are cut until asked for.

import { get, id } from "../api.js";
import { badge, h } from "../dom.js";
import { whole } from "../format.js";

// `more` fetches the whole text; without it the cut is only told.
export function text(part, more) {
  const shown = h("pre", { class: "text" }, part.text || "(nothing)");
  if (part.characters <= [...part.text].length) return shown;
  const rest = `${whole(part.characters)} characters in all`;
  if (!more) return [shown, h("p", { class: "fine" }, rest)];
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    try {
      shown.textContent = await more();
      button.remove();
    } catch (error) {
      button.disabled = false;
      button.textContent = `${error.message}: try again`;
    }
  } }, `Show all ${whole(part.characters)} characters`);
  return [shown, h("p", {}, button)];
}

// What came back to a turn: of its tool calls, or from an environment.
export function answers(turn, more) {
  if (turn.reply) {
    return h("div", { class: "call", role: "group", "aria-label": `Reply to turn ${turn.number + 1}` },
      h("p", { class: "fine" }, "reply"),
      text(turn.reply, more && (async () => (await more()).reply.text)));
  }
  return turn.tool_calls.map((call, place) =>
    h("div", { class: "call", role: "group", "aria-label": `Tool call ${place + 1} of turn ${turn.number + 1}` },
      h("p", { class: "call-head" }, h("code", {}, call.name), badge(call.ok ? "ok" : "failed"), h("span", { class: "fine" }, `${call.seconds.toFixed(2)} s`)),
      text(call.arguments, more && (async () => (await more()).tool_calls[place].arguments.text)),
      h("p", { class: "fine" }, "result"),
      text(call.result, more && (async () => (await more()).tool_calls[place].result.text))));
}

export function wholeTurn(job, number, signal) {
  return async () => (await get(`jobs/${id(job)}/turns`, { signal, query: { after: number, limit: 1, full: true } })).turns[0];
}

// Links through pages of turns; `link` gives the address of the page that begins with a turn.
export function pager(after, count, size, link) {
  if (count <= size) return null;
  const last = Math.max(0, Math.floor((count - 1) / size) * size);
  const to = Math.min(count, after + size);
  const step = (name, start, there) => (there ? h("a", { href: link(start), class: "button" }, name) : h("span", { class: "button off", "aria-disabled": "true" }, name));
  return h("nav", { class: "pager", "aria-label": "Turns" },
    step("First", 0, after > 0),
    step("Previous", Math.max(0, after - size), after > 0),
    h("span", {}, `turns ${after + 1}–${to} of ${whole(count)}`),
    step("Next", after + size, to < count),
    step("Last", last, to < count));
}
