// All groups of a run as the lists have them: read a page at a time, and after a change only what is new.

import { get, id, viewing } from "./api.js";
import { spanOf } from "./figures.js";

const PAGE = viewing === "bundle" ? 100 : 200; // a bundle has the pages of its lists

// Groups by name, the oldest first. `known` is filled; `told(count)` is called after each page.
export async function everyGroup(run, known, { open = false, signal, told = () => {} } = {}) {
  const states = [...(viewing ? [] : ["closed"]), ...(open && !viewing ? ["open"] : []), "archived"];
  const first = known.size === 0;
  for (const state of states) {
    for (let after = null; ;) {
      const page = await groups(run, { state, after, limit: PAGE }, signal);
      const fresh = page.groups.filter((group) => changed(known, group));
      for (const group of fresh) known.set(group.group_id, group);
      told(known.size);
      after = page.next;
      if (!after || (!first && !fresh.length && state !== "open")) break;
    }
  }
  return inOrder([...known.values()]);
}

// A copy in the archive is the same group.
function changed(known, group) {
  const there = known.get(group.group_id);
  return !there || there.state !== group.state || there.ended !== group.ended || there.archived !== group.archived;
}

// A run that only one side knows is no fault.
async function groups(run, query, signal) {
  try {
    return await get(`runs/${id(run)}/groups`, { signal, query });
  } catch (error) {
    if (error.status === 404 && !viewing) return { groups: [], next: null };
    throw error;
  }
}

// Lists begin with the newest; files have their groups in order and no times.
function inOrder(found) {
  if (found.some((group) => group.closed_ms)) {
    return found.reverse().sort((a, b) => (a.closed_ms ?? Infinity) - (b.closed_ms ?? Infinity));
  }
  return found;
}

// The groups of each batch, in the order in which their first group closed.
export function steps(groups) {
  const found = new Map();
  for (const group of groups) {
    if (!found.has(group.batch_id)) found.set(group.batch_id, []);
    found.get(group.batch_id).push(group);
  }
  return [...found].map(([name, members]) => ({ name, groups: members }));
}

// At most `count` equal parts of the time from the first sample's begin to the last close; in some, no group closed.
export function periods(groups, count) {
  const timed = groups.filter((group) => group.closed_ms);
  if (!timed.length) return [];
  const { from, ms: all } = spanOf(timed);
  const ms = Math.max(1_000, (all + 1) / count);
  const placeOf = (group) => Math.floor((group.closed_ms - from) / ms);
  const last = timed.reduce((most, group) => Math.max(most, placeOf(group)), 0);
  const found = Array.from({ length: last + 1 }, (_, place) => ({ from: from + place * ms, ms, groups: [] }));
  for (const group of timed) found[placeOf(group)].groups.push(group);
  return found;
}
