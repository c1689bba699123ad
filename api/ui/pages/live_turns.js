// The turns of a rollout that is under way, as its log has them: the newest ones, and what is under way behind them.

import { get, id } from "../api.js";
import { rawButton, text } from "../blocks.js";
import { badge, become, crumbs, facts, h, heading } from "../dom.js";
import { TURNS, groupOf, runOf, seconds, to, whole } from "../format.js";

const AT_ONCE = 50;
const LONGEST = 4000; // characters of a text that are shown at first
let kept = { job: "" }; // what was read of the rollout that is shown: the rest is read from there on

export const title = ([job]) => `Turns so far of ${job}`;
export const topic = ([job]) => job;

export async function load([job], signal) {
  let found = kept.job === job ? kept : begun(job);
  for (let more = true; more;) {
    const page = await get(`jobs/${id(job)}/log`, { signal, query: { after: found.next, limit: AT_ONCE } });
    if (found.rollout && page.rollout && page.rollout !== found.rollout) {
      found = begun(job);
      continue;
    }
    const turns = [...found.turns, ...page.turns].slice(-TURNS);
    found = { job, rollout: page.rollout || found.rollout, turns, next: page.next, underWay: page.under_way, complete: page.complete, note: page.note };
    more = page.turns.length > 0 && !page.complete;
  }
  kept = found;
  return found;
}

const begun = (job) => ({ job, rollout: "", turns: [], next: 0 });

export function mount(found, [job]) {
  const list = h("ol", { class: "turns" });
  const head = h("div", { class: "live-head" });
  const run = runOf(job);
  const group = groupOf(job);
  update(found, list, head);
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [group.split(":")[1], to.group(run, group.split(":")[1])], [`sample ${job.split(":")[2]}`, to.job(job)], ["turns so far"]),
    heading(`Turns so far of ${job}`),
    head,
    h("p", { class: "pager" }, rawButton(() => list)),
    h("h2", {}, "Turns"),
    list,
  ];
}

// What has come since is added; what is there already keeps its elements, and so what was unfolded in it.
export function update(found, list = document.querySelector("main .turns"), head = document.querySelector("main .live-head")) {
  const { job, rollout, turns, next, underWay, complete, note } = found;
  become(head, [
    note && h("p", { class: "why" }, note),
    complete && h("p", { class: "why" }, "It has left RUN: ", h("a", { href: to.trajectory(job) }, "its whole trajectory")),
    facts([["State", badge(complete ? "ended" : "running")], ["Finished turns", whole(next)], ["Shown", turns.length ? `the newest ${whole(turns.length)}` : "–"], ["Prompt tokens", whole((underWay ?? turns.at(-1))?.prompt_tokens)]]),
  ].filter(Boolean));
  const wanted = [...turns.map((turn) => [`${rollout}-${turn.number}`, turn]), ...(underWay ? [[`${rollout}-${underWay.number}-under-way`, underWay]] : [])];
  const there = new Map([...list.children].map((each) => [each.dataset.turn, each]));
  const items = wanted.map(([key, turn]) => there.get(key) ?? h("li", { "data-turn": key }, article(turn, turn === underWay)));
  for (const each of there.values()) if (!items.includes(each)) each.remove();
  items.forEach((each, place) => { if (list.children[place] !== each) list.insertBefore(each, list.children[place] ?? null); });
}

function article(turn, underWay) {
  const versions = [...new Set(turn.spans.flatMap((span) => span.version ?? []))];
  const about = [`${whole(turn.ids.length)} tokens`, seconds(turn.llm_seconds), turn.finish_reason, versions.length ? `version ${versions.join("→")}` : null, underWay ? "its calls are under way" : null];
  const title = h("h3", { id: `turn-${turn.number}`, tabindex: "-1" }, `Turn ${turn.number + 1}`, h("span", { class: "fine" }, about.filter(Boolean).join(" · ")));
  return h("article", { class: "turn", "aria-labelledby": `turn-${turn.number}` },
    turn.text ? cut(turn.text, "message", title) : [title, h("p", { class: "fine" }, "The API shows the text of tokens where PRORL_TOKENIZER names the policy's tokenizer.")],
    turn.calls.map((call, place) => h("div", { class: "call", role: "group", "aria-label": `Answer to call ${place + 1} of turn ${turn.number + 1}` },
      cut(call.result, "result", h("p", { class: "call-head" }, badge(call.ok ? "ok" : "failed"), h("span", { class: "fine" }, seconds(call.seconds)))))),
    turn.reply ? cut(turn.reply, "result", h("p", { class: "fine" }, "reply")) : null);
}

function cut(all, kind, title) {
  const characters = [...all];
  return text({ text: characters.slice(0, LONGEST).join(""), characters: characters.length }, async () => all, kind, title);
}
