// Follows the service's event stream: a fetch, since an EventSource cannot send a token. It resumes where it was.

import { request } from "./api.js";

const LONGEST_WAIT_MS = 10_000;

// Calls `told(kind, data)` for each message and `state(text)` when the stream comes or goes, until the signal ends it.
export async function follow(topic, { signal, told, state }) {
  let last = null;
  let wait = 500;
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const answer = await request(`watch?topic=${encodeURIComponent(topic)}`, { signal, headers });
      state("live");
      for await (const message of messages(answer.body)) {
        wait = 500;
        last = message.id ?? last;
        if (message.kind) told(message.kind, JSON.parse(message.data));
      }
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      wait = Math.min(LONGEST_WAIT_MS, wait * 2);
    }
    state("reconnecting");
    await pause(wait, signal);
  }
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) yield parsed(block);
  }
}

function parsed(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return { id: fields.id ?? null, kind: fields.event ?? null, data: fields.data ?? "{}" };
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
