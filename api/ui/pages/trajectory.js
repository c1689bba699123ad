// The trajectory of one job: a map of its turns, a page of them, and the tokens of each when asked for.

import { get, id, request, viewing } from "../api.js";
import { rawButton, text } from "../blocks.js";
import { badge, crumbs, facts, h, heading } from "../dom.js";
import { TURNS, fixed, groupOf, runOf, seconds, to, whole } from "../format.js";
import { legend, tokens } from "./tokens.js";
import { choose } from "./pair.js";
import { answers, messages, pager, said, wholeTurn } from "./turns.js";

export const title = ([job]) => `Trajectory of ${job}`;

export async function load([job, after = "0"], signal) {
  const [outline, group] = await Promise.all([
    get(`jobs/${id(job)}/turns`, { signal, query: { after, limit: TURNS } }),
    get(`groups/${id(groupOf(job))}`, { signal }),
  ]);
  return { outline, group, sample: group.samples.find((each) => each.job_id === job) };
}

export function mount({ outline, group, sample }, [job, after = "0", wanted = ""], signal) {
  const record = sample?.record;
  const run = runOf(job);
  const start = Number(after);
  const used = new Set(outline.turns.map((turn) => turn.segment));
  const pages = () => pager(start, outline.turns_in_all, TURNS, (turn) => to.trajectory(job, turn));
  const list = h("ol", { class: "turns", start: start + 1 }, outline.turns.map((turn, place) => h("li", {}, article(job, turn, outline, place, signal))));
  if (wanted) requestAnimationFrame(() => shownTurn(list.querySelector(`#turn-${CSS.escape(wanted)}`)));
  return [
    crumbs(["Runs", "#/runs"], [run, to.run(run)], [group.summary.batch_id, to.batch(run, group.summary.batch_id)],
      [group.summary.group_id, to.group(run, group.summary.group_id)], [`sample ${job.split(":")[2]}`, to.job(job)], ["trajectory"]),
    heading(`Trajectory of ${job}`, badge(sample?.state ?? "running"), group.summary.archived ? badge("archived") : null),
    facts(head(outline, group, record)),
    record?.note && h("p", { class: "why" }, record.note, " ", h("a", { href: to.job(job) }, "what it rests on")),
    h("p", { class: "pager" }, rawButton(() => document.querySelector("main")), viewing === "bundle" ? null : download(job, signal), choose(job)),
    legend(outline.versions),
    ...outline.segments.map((segment, place) => used.has(place) && prompt(job, segment, place, outline, signal)),
    h("h2", {}, "Turns"),
    map(job, outline, start),
    pages(),
    list,
    outline.turns.length > 3 && pages(),
  ].filter(Boolean);
}

export function shownTurn(heading) {
  if (!heading) return;
  heading.closest("article").scrollIntoView({ block: "start" });
  heading.focus({ preventScroll: true });
}

function head(outline, group, record) {
  const sampled = outline.segments.reduce((sum, segment) => sum + segment.sampled_tokens, 0);
  const parts = Object.entries(record?.reward_parts ?? {}).map(([name, value]) => [`Reward: ${name}`, fixed(value)]);
  return [
    ["Task", group.summary.task_id || "–"],
    ["Reward", fixed(record?.reward)],
    ...parts,
    ["Stopped by", outline.truncated_by ?? outline.stop_reason],
    ["Turns", whole(outline.turns_in_all)],
    ["Sampled tokens", whole(sampled)],
    ["Segments", whole(outline.segments.length)],
    ...(outline.forked_from ? [["Forked from", forked(outline.forked_from)]] : []),
    ["Policy versions", outline.versions.join(", ") || "not told"],
    ["Temperature, top-p, top-k", `${outline.temperature}, ${outline.top_p}, ${outline.top_k}`],
  ];
}

function forked(from) {
  return h("span", {}, h("a", { href: to.trajectory(from.job_id, 0) }, from.job_id), `, turns 1–${from.turn + 1}: trained there`);
}

// One cell a turn of the whole trajectory.
function map(job, outline, start) {
  if (outline.turns_in_all < 2) return null;
  const here = new Set(outline.turns.map((turn) => turn.number));
  const wrong = new Set(outline.failed);
  const cells = Array.from({ length: outline.turns_in_all }, (_, number) => {
    const failed = wrong.has(number);
    return h("li", {}, h("a", { href: to.turn(job, number), "data-here": here.has(number) ? "true" : null, "data-failed": failed ? "true" : null,
      "aria-label": `Turn ${number + 1}${failed ? ", a call failed" : ""}` }, number + 1));
  });
  return h("nav", { "aria-label": "Map of the trajectory" }, h("ol", { class: "map" }, cells));
}

function download(job, signal) {
  const button = h("button", { type: "button", onclick: async () => {
    try {
      const answer = await request(`jobs/${id(job)}/${viewing ? "turns?full=true&limit=50" : "trajectory"}`, { signal });
      const url = URL.createObjectURL(await answer.blob());
      h("a", { href: url, download: `${job.replaceAll(":", "_")}.json` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch (error) {
      if (!signal.aborted) button.textContent = `${error.message}: try again`;
    }
  } }, "Download as JSON");
  return button;
}

function prompt(job, segment, place, outline, signal) {
  const opened = segment.opened_by === "start" ? "Prompt" : `Prompt of segment ${place + 1}, opened by ${segment.opened_by}`;
  const more = async () => (await get(`jobs/${id(job)}/turns`, { signal, query: { limit: 1, full: true } })).segments[place];
  const shown = segment.messages.length
    ? [messages(segment.messages, async () => (await more()).messages), h("details", {}, h("summary", { class: "fine" }, "As the chat template wrote it"), text(segment.prompt, async () => (await more()).prompt.text, "result"))]
    : text(segment.prompt, async () => (await more()).prompt.text);
  return h("details", { class: "prompt" },
    h("summary", {}, opened, h("span", { class: "fine" }, ` ${whole(segment.prompt_tokens)} tokens, response ${whole(segment.response_tokens)}`)),
    shown,
    tokens(job, { name: "Tokens of the prompt", segment: place, part: "prompt", start: 0, end: segment.prompt_tokens }, outline.versions, signal));
}

function article(job, turn, outline, place, signal) {
  const more = wholeTurn(job, turn.number, signal);
  const following = outline.turns[place + 1];
  const end = following?.segment === turn.segment ? following.start : outline.next === null ? null : turn.end;
  const about = [
    `${whole(turn.end - turn.start)} tokens`,
    seconds(turn.llm_seconds),
    turn.finish_reason,
    turn.cached_tokens === null ? null : `${whole(turn.cached_tokens)} of ${whole(turn.prompt_tokens)} prompt tokens cached`,
    turn.left_out ? `not trained: ${turn.left_out}` : null,
    turn.mean_logprob === null ? null : `mean log-probability ${fixed(turn.mean_logprob)}`,
    turn.versions.length ? `version ${turn.versions.join("→")}` : null,
  ];
  return h("article", { class: "turn", "aria-labelledby": `turn-${turn.number}` },
    said(turn, more, h("h3", { id: `turn-${turn.number}`, tabindex: "-1" }, h("a", { href: to.turn(job, turn.number), class: "anchor" }, `Turn ${turn.number + 1}`), h("span", { class: "fine" }, about.filter(Boolean).join(" · ")))),
    answers(turn, more),
    messages(turn.following, async () => (await more()).following),
    tokens(job, { name: "Tokens and log-probabilities", segment: turn.segment, part: "response", start: turn.start, end: end ?? null }, outline.versions, signal));
}
