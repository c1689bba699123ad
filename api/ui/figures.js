// Numbers of some groups: what the charts show. Means are over samples, and null where there is nothing to tell.

const sum = (values) => values.reduce((total, value) => total + value, 0);
export const mean = (values) => (values.length ? sum(values) / values.length : null);
const share = (part, whole) => (whole ? part / whole : null);

export function quantile(values, at) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(at * sorted.length))];
}

export const rewardsOf = (groups) => groups.flatMap((group) => group.rewards.filter((reward) => reward !== null));
export const tokensOf = (groups) => groups.flatMap((group) => group.tokens);
export const turnsOf = (groups) => groups.flatMap((group) => group.turns);

const outcome = (groups, ...names) => sum(groups.flatMap((group) => names.map((name) => group.outcomes[name] ?? 0)));

// `newest` is the newest policy version that any group up to these was sampled on.
export function figures(groups, newest) {
  const rewards = rewardsOf(groups);
  const tokens = tokensOf(groups);
  const ended = sum(groups.map((group) => group.ended));
  const spreads = groups.map((group) => group.std).filter((std) => std !== null);
  const calls = sum(groups.map((group) => group.tool_calls));
  const failed = sum(groups.flatMap((group) => Object.values(group.tool_failures)));
  const versions = groups.map((group) => group.versions?.[0]).filter((version) => version !== undefined);
  const seconds = (stage) => share(sum(groups.map((group) => group.seconds[stage] ?? 0)), ended);
  return {
    groups: groups.length,
    reward: mean(rewards),
    best: rewards.length ? rewards.reduce((a, b) => Math.max(a, b)) : null, // of more than a call takes as arguments
    spread: mean(spreads),
    flat: share(spreads.filter((std) => std === 0).length, spreads.length),
    tokens: mean(tokens),
    longest: quantile(tokens, 0.9),
    sampled: sum(tokens),
    turns: mean(turnsOf(groups)),
    truncated: share(outcome(groups, "truncated"), ended),
    infra: share(outcome(groups, "infra_error"), ended),
    agent: share(outcome(groups, "agent_error", "stage_timeout"), ended),
    tools: share(failed, calls),
    behind: newest === null ? null : mean(versions.map((version) => Math.max(0, newest - version))),
    init: seconds("init"),
    run: seconds("run"),
    eval: seconds("eval"),
  };
}

// Figures of parts in a row, each against the newest version known by its end.
export function inRow(parts) {
  let newest = null;
  return parts.map((part) => {
    for (const { versions } of part.groups) if (versions) newest = Math.max(newest ?? 0, versions[1]);
    return { ...part, figures: figures(part.groups, newest) };
  });
}

// How many slots of each stage groups kept busy on average in parts of time, {from, ms}, both in their order. Their
// samples' seconds count where they were spent at the latest: EVAL until the group closed, RUN before it, INIT before
// that. Null without times.
export function busy(groups, parts) {
  const timed = groups.filter((group) => group.closed_ms);
  if (!timed.length) return parts.map(() => ({ init: null, run: null, eval: null }));
  const found = parts.map(() => ({ init: 0, run: 0, eval: 0 }));
  let last = 0;
  for (const group of timed) {
    while (last + 1 < parts.length && parts[last + 1].from < group.closed_ms) last += 1;
    let end = group.closed_ms;
    for (const stage of ["eval", "run", "init"]) {
      const begin = end - perSample(group, stage);
      for (let place = last; place >= 0 && parts[place].from + parts[place].ms > begin; place -= 1) {
        const { from, ms } = parts[place];
        const within = Math.min(end, from + ms) - Math.max(begin, from);
        if (within > 0) found[place][stage] += (within * Math.max(1, group.ended)) / ms;
      }
      end = begin;
    }
  }
  return found;
}

const perSample = (group, stage) => (1000 * (group.seconds[stage] ?? 0)) / Math.max(1, group.ended);

// The time from the first sample of some groups to the last one's end, as far as `busy` knows it.
export function spanOf(groups) {
  const timed = groups.filter((group) => group.closed_ms);
  const begins = timed.map((group) => group.closed_ms - ["init", "run", "eval"].reduce((total, stage) => total + perSample(group, stage), 0));
  const from = begins.reduce((a, b) => Math.min(a, b), Infinity);
  return { from, ms: Math.max(1, timed.reduce((last, group) => Math.max(last, group.closed_ms), 0) - from) };
}

// Equal parts of the range of some values: {from, to, count}.
export function bins(values, count) {
  if (!values.length) return [];
  const least = values.reduce((a, b) => Math.min(a, b));
  const most = values.reduce((a, b) => Math.max(a, b));
  const width = (most - least) / count || 1;
  const found = Array.from({ length: most > least ? count : 1 }, (_, place) => ({ from: least + place * width, to: least + (place + 1) * width, count: 0 }));
  for (const value of values) found[Math.min(found.length - 1, Math.floor((value - least) / width))].count += 1;
  return found;
}
