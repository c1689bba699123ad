// Tokens of a range, fetched when they are wanted: as text where the service has the vocabulary, coloured by their
// log-probability; or ids over log-probabilities, coloured by mask and policy version.

import { get, id } from "../api.js";
import { h } from "../dom.js";
import { fixed, whole } from "../format.js";

const PAGE = 256;
export const COLOURS = 6;

// A button, and below it the tokens `[start, end)` of a segment's part, a page at a time. `end` null: to its end.
export function tokens(job, range, versions, signal) {
  const place = h("div", { class: "tokens-place", hidden: true });
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => {
    const open = place.hidden;
    place.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open && !place.childElementCount) show(range.start);
  } }, range.name);

  let ids = false;
  async function show(start) {
    place.setAttribute("aria-busy", "true");
    try {
      const limit = Math.min(PAGE, (range.end ?? Infinity) - start);
      const page = await get(`jobs/${id(job)}/tokens`, { signal, query: { segment: range.segment, part: range.part, start, limit } });
      const paint = () => place.replaceChildren(...shown(page, { ...range, end: range.end ?? page.total }, versions, show, ids, () => { ids = !ids; paint(); }));
      paint();
    } catch (error) {
      if (!signal.aborted) place.replaceChildren(h("p", { role: "alert" }, error.message));
    }
    place.setAttribute("aria-busy", "false");
  }
  return [h("p", {}, button), place];
}

function shown(page, range, versions, show, ids, change) {
  const last = page.start + page.ids.length;
  const step = (name, start, there) => h("button", { type: "button", disabled: !there, onclick: () => show(start) }, name);
  const moves = range.end - range.start <= PAGE ? [] : [
    step("Earlier tokens", Math.max(range.start, page.start - PAGE), page.start > range.start),
    step("Later tokens", last, last < range.end),
  ];
  const asText = page.texts.length > 0 && !ids;
  const other = page.texts.length ? h("button", { type: "button", onclick: change }, ids ? "As text" : "As ids") : null;
  return [
    h("p", { class: "fine" }, `${page.part} tokens ${whole(page.start)}–${whole(last)} of ${whole(page.total)} `, ...moves, " ", other),
    h("div", { class: asText ? "tokens words" : "tokens", role: "group", "aria-label": `Tokens ${page.start} to ${last}` }, asText ? words(page) : cells(page, versions)),
  ];
}

// Log-probabilities at which the colour changes: the darker, the less expected.
const HEAT = [-0.1, -0.5, -1, -2, -4];

function words(page) {
  return page.ids.map((token, at) => {
    const sampled = page.loss_mask[at] === 1;
    const logprob = page.logprobs[at] ?? null;
    const heat = logprob === null ? null : HEAT.filter((limit) => logprob < limit).length;
    const told = sampled ? `log-probability ${fixed(logprob)}` : page.part === "prompt" ? "prompt" : "given";
    return h("span", { class: "word", "data-mask": page.part === "prompt" ? null : sampled ? "1" : "0", "data-heat": heat, title: `id ${token}, ${told}` }, page.texts[at]);
  });
}

function cells(page, versions) {
  let before = null;
  return page.ids.map((token, at) => {
    const place = page.start + at;
    const sampled = page.loss_mask[at] === 1;
    const span = sampled ? page.spans.find((each) => each.start <= place && place < each.end) : null;
    const version = span?.version ? [...new Set(span.version)].join("→") : null;
    const mark = version !== null && version !== before ? h("b", { class: "mark" }, `v${version}`) : null;
    before = version ?? before;
    const colour = span?.version ? versions.indexOf(span.version[0]) % COLOURS : null;
    const logprob = page.logprobs[at];
    return [mark, h("span", { class: "token", "data-mask": sampled ? "1" : "0", "data-version": colour },
      String(token), h("small", {}, sampled ? (logprob ?? 0).toFixed(2).replace("-", "−") : page.part === "prompt" ? "prompt" : "given"))];
  });
}

export function legend(versions) {
  return h("ul", { class: "legend", "aria-label": "Colours of tokens" },
    h("li", {}, h("span", { class: "token", "data-mask": "0" }, "id"), " given by the environment, mask 0"),
    (versions.length ? versions : [null]).map((version, place) =>
      h("li", {}, h("span", { class: "token", "data-mask": "1", "data-version": version === null ? null : place % COLOURS }, "id"),
        version === null ? " sampled, version not told" : ` sampled on version ${version}`)));
}
