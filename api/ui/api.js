// Requests to the service. The token stays in this tab's session storage and goes out as a header, never in an address.

const TOKEN = "prorl-token";

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  clear: () => sessionStorage.removeItem(TOKEN),
};

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function get(path, { signal, query, headers } = {}) {
  const asked = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined));
  const answer = await request(`${path}${asked.size ? `?${asked}` : ""}`, { signal, headers });
  return answer.json();
}

export async function request(path, { signal, headers } = {}) {
  const shown = token.get();
  const answer = await fetch(`../v1/${path}`, {
    signal,
    headers: { ...(shown ? { Authorization: `Bearer ${shown}` } : {}), ...headers },
    credentials: "omit",
    cache: "no-store",
  });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.detail ?? `the service answered ${answer.status}`);
}

export const id = encodeURIComponent;
