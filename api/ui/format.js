// Numbers, times and names as people read them.

const WHOLE = new Intl.NumberFormat("en");
const NONE = "–";

export const whole = (value) => (value === null || value === undefined ? NONE : WHOLE.format(value));

export const fixed = (value, digits = 2) =>
  value === null || value === undefined ? NONE : value.toFixed(digits).replace("-", "−");

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  for (; value >= 1024 && step < units.length - 1; step += 1) value /= 1024;
  return `${step ? value.toFixed(1) : value} ${units[step]}`;
}

export const percent = (value) => (value === null || value === undefined ? NONE : `${Math.round(value * 100)} %`);

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const moment = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// Turns of a page of a trajectory.
export const TURNS = 10;

export const runOf = (id) => id.split(":")[0];

export const groupOf = (job) => job.split(":").slice(0, 2).join(":");

// Addresses of pages: ids are the caller's, so they are escaped.
export const to = {
  run: (run) => `#/runs/${encodeURIComponent(run)}`,
  batch: (run, batch) => `#/batches/${encodeURIComponent(`${run}:${batch}`)}`,
  group: (run, group) => `#/groups/${encodeURIComponent(`${run}:${group}`)}`,
  list: (run, state, batch = "", after = "0") => `#/lists/${[run, state, batch, after].map(encodeURIComponent).join("/")}`,
  charts: (run, over = "step") => `#/charts/${encodeURIComponent(run)}/${over}`,
  explore: (run) => `#/explore/${encodeURIComponent(run)}`,
  failures: (run) => `#/failures/${encodeURIComponent(run)}`,
  compare: (group, indexes) => `#/compare/${encodeURIComponent(group)}/${indexes.join(",")}`,
  pair: (left, right, turn = 0) => `#/pair/${encodeURIComponent(left)}/${encodeURIComponent(right)}/${turn}`,
  job: (job) => `#/jobs/${encodeURIComponent(job)}`,
  live: (job) => `#/live/${encodeURIComponent(job)}`,
  turn: (job, turn) => `#/trajectories/${encodeURIComponent(job)}/${turn - (turn % TURNS)}/${turn}`,
  trajectory: (job, turn = 0) => `#/trajectories/${encodeURIComponent(job)}/${turn}`,
};
