// What changes something: a button, a question, a request. A button says in its attributes what it does, so that it keeps
// working when its page is rendered again. Whose token reads only is shown none.

import { get, id, post } from "./api.js";
import { h } from "./dom.js";
import { whole } from "./format.js";

const HOUR = 3_600_000;
const PAUSES = { "an hour": HOUR, "a day": 24 * HOUR, "a week": 7 * 24 * HOUR, "30 days": 30 * 24 * HOUR };
const CANCELLED = "It cannot be taken back.";
const ACTS = {
  cancel: {
    name: "Cancel",
    says: {
      run: `What waits of it ends now, and workers stop what runs. Groups that have closed stay. ${CANCELLED}`,
      batch: `What waits of it ends now, and workers stop what runs. Groups that have closed stay. ${CANCELLED}`,
      group: `What waits of it ends now, and workers stop what runs; it closes as cancelled. ${CANCELLED}`,
      job: `It ends now, or as soon as its worker has stopped it, as a cancelled sample of its group. ${CANCELLED}`,
    },
  },
  pause: {
    name: "Pause",
    says: {
      run: "Nothing more of it is admitted, and its jobs give their slots, backends and sandboxes back at their next turn. Their time limits stand still.",
      job: "It gives its slot, backend and sandbox back at its next turn. Its time limits stand still. Without a log of turns it starts again when it is resumed.",
    },
  },
  resume: {
    name: "Resume",
    says: { run: "All its jobs continue, also those that were paused alone.", job: "It continues where it was paused." },
  },
};

// Asks the service once what the token opens; `act` shows the buttons.
export async function permit() {
  try {
    document.body.dataset.may = (await get("access")).may;
  } catch {
    delete document.body.dataset.may;
  }
}

export function actions(kind, ref, ...wanted) {
  return h("div", { class: "actions", role: "group", "aria-label": `Actions on this ${kind}` }, wanted.filter(Boolean).map((act) =>
    h("button", { type: "button", "data-act": act, "data-kind": kind, "data-ref": ref }, `${ACTS[act].name} …`)));
}

export function listen(main, done) {
  main.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-act]");
    if (button) ask(button.dataset.act, button.dataset.kind, button.dataset.ref, done);
  });
}

function ask(act, kind, ref, done) {
  const { name, says } = ACTS[act];
  let acted = false;
  const told = h("p", { role: "status" });
  const lasts = h("select", { id: "pause-for" }, Object.entries(PAUSES).map(([text, ms]) => h("option", { value: ms, selected: text === "a day" }, text)));
  const then = h("select", { id: "pause-then" }, h("option", { value: "resume" }, "it is resumed"), h("option", { value: "expire" }, "what is left expires"));
  const body = () => (act === "pause" ? { for_ms: Number(lasts.value), then: then.value } : undefined);
  const keep = h("button", { type: "button", autofocus: true, onclick: () => box.close() }, "Leave it");
  const go = h("button", { type: "button", class: act === "cancel" ? "danger" : null, onclick: async () => {
    go.disabled = true;
    try {
      const answer = await post(`${kind === "batch" ? "batches" : `${kind}s`}/${id(ref)}/${act}`, body());
      told.textContent = outcome(answer);
      go.remove();
      keep.textContent = "Close";
      keep.focus();
      acted = true;
    } catch (error) {
      told.textContent = error.message;
      go.disabled = false;
    }
  } }, `${name} the ${kind}`);
  const box = h("dialog", { class: "question", "aria-labelledby": "question-title", onclose: () => { box.remove(); if (acted) done(); } },
    h("h2", { id: "question-title" }, `${name} ${kind} ${ref}?`),
    h("p", {}, says[kind]),
    act === "pause" ? h("p", { class: "choices" }, h("label", { for: "pause-for" }, "For "), lasts, h("label", { for: "pause-then" }, " then "), then) : null,
    told,
    h("p", { class: "pager" }, keep, go));
  document.body.append(box);
  box.showModal();
}

function outcome({ state, jobs, pausing = 0 }) {
  const count = (number) => `${whole(number)} ${number === 1 ? "job" : "jobs"}`;
  if (state === "cancelling") return `Cancelling: workers stop ${count(jobs)}.`;
  if (state === "pausing") return `Pausing: ${count(jobs)} paused, ${count(pausing)} until the next turn.`;
  if (state === "cancelled") return "Cancelled: nothing of it runs.";
  return `${state[0].toUpperCase()}${state.slice(1)}: ${count(jobs)}.`;
}
