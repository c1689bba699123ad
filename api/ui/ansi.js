// Terminal output as elements: colours and weights of escape sequences, progress bars as their last state.

import { h } from "./dom.js";
import { createAnsiSequenceParser, createColorPalette } from "./vendor/ansi-sequence-parser.js";

const OTHERS = /\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>]|[()][0-2AB])/g; // that set no colour
const BROKEN = /\x1b(?!\[[\d;]*m)/g;
const CONTROLS = /[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
const MOST = 200_000; // characters; what is longer is shown as it is
const palette = createColorPalette();

export function ansi(text) {
  if (text.length > MOST || !/[\x00-\x08\x0b-\x1f\x7f]/.test(text)) return [text];
  const lines = text.replaceAll("\r\n", "\n").split("\n").map(settled).join("\n");
  const plain = lines.replace(OTHERS, "").replace(BROKEN, "␛").replace(CONTROLS, (one) => (one === "\x7f" ? "␡" : String.fromCharCode(0x2400 + one.charCodeAt(0))));
  return createAnsiSequenceParser().parse(plain).map(({ value, foreground, background, decorations }) => {
    if (!foreground && !background && !decorations.size) return value;
    return h("span", { class: "ansi", "data-ink": named(foreground), "data-ground": named(background), "data-look": [...decorations].join(" ") || null, style: style(foreground, background) }, value);
  });
}

// What a line shows once all of it is written: what stands behind its last return to the line's begin.
function settled(line) {
  let end = line.length;
  while (line[end - 1] === "\r") end -= 1;
  return end ? line.slice(line.lastIndexOf("\r", end - 1) + 1, end) : "";
}

// The sixteen named colours are the style sheet's, readable in light and dark.
const named = (colour) => (colour?.type === "named" ? colour.name : null);

function style(foreground, background) {
  const told = {};
  if (foreground && foreground.type !== "named") told.color = palette.value(foreground) ?? "";
  if (background && background.type !== "named") told["background-color"] = palette.value(background) ?? "";
  return told;
}
