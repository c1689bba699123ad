// What turns look like: what the agent said, its tool calls, their results.

import { get, id } from "../api.js";
import { text } from "../blocks.js";
import { badge, h } from "../dom.js";
import { whole } from "../format.js";

// What came back to a turn: of its tool calls, or from an environment.
export function answers(turn, more) {
  if (turn.reply) {
    return h("div", { class: "call", role: "group", "aria-label": `Reply to turn ${turn.number + 1}` },
      text(turn.reply, more && (async () => (await more()).reply.text), "result", h("p", { class: "fine" }, "reply")));
  }
  return turn.tool_calls.map((call, place) =>
    h("div", { class: "call", role: "group", "aria-label": `Tool call ${place + 1} of turn ${turn.number + 1}` },
      text(call.arguments, more && (async () => (await more()).tool_calls[place].arguments.text), "arguments",
        h("p", { class: "call-head" }, h("code", {}, call.name), badge(call.ok ? "ok" : "failed"), h("span", { class: "fine" }, `${call.seconds.toFixed(2)} s`))),
      text(call.result, more && (async () => (await more()).tool_calls[place].result.text), "result", h("p", { class: "fine" }, "result"))));
}

// What the agent said, below `title`: its thought folded, and its words. Calls are shown by themselves; a template's
// text is left out.
export function said(turn, more, title = null) {
  const of = (name) => more && (async () => (await more())[name].text);
  const plain = turn.content === null || (!turn.content.text && !turn.tool_calls.length);
  const words = plain ? text(turn.text, of("text"), "message", title) : turn.content.text ? text(turn.content, of("content"), "message", title) : [title];
  const thought = turn.reasoning ? h("details", { class: "thought" }, h("summary", {}, "Thought"), text(turn.reasoning, of("reasoning"))) : null;
  return title ? [words[0], thought, ...words.slice(1)] : [thought, ...words];
}

// Messages by role.
export function messages(found, more) {
  return found.map((message, place) => h("div", { class: "message", "data-role": message.role, role: "group", "aria-label": `${message.role} message` },
    text(message.content, more && (async () => (await more())[place].content.text), message.role === "tool" ? "result" : "message", h("p", { class: "role" }, message.role))));
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
