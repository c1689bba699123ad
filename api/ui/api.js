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

export async function post(path, body) {
  const answer = await request(path, { method: "POST", body });
  return answer.json();
}

// What stands in the place of a service: "files", "bundle", or nothing where there is one.
export const viewing = document.querySelector('meta[name="prorl-view"]')?.content ?? null;

// Of a bundle: answers that came with the page, or that come when a page of their job is opened.
async function bundled(path) {
  const [place, query = ""] = path.split("?");
  const parts = place.split("/").map(decodeURIComponent);
  const asked = new URLSearchParams(query);
  asked.sort();
  const key = `${parts.join("/")}${query ? `?${asked}` : ""}`;
  const find = () => window.prorl.answers.find((each) => Object.hasOwn(each, key))?.[key];
  const file = parts[0] === "jobs" ? window.prorl.places[0][parts[1]] : null;
  if (find() === undefined && file) await loaded(file);
  const found = find();
  if (found === undefined) throw new Refused(404, `${parts.join("/")} is not in this bundle`);
  return { json: async () => found };
}

function loaded(file) {
  return new Promise((resolve, reject) => {
    const element = document.createElement("script");
    element.src = file;
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Refused(404, `${file} is missing beside this page`)));
    document.head.append(element);
  });
}

export async function request(path, { signal, headers, method = "GET", body } = {}) {
  if (viewing === "bundle") return bundled(path);
  const shown = token.get();
  const kind = body ? { "Content-Type": "application/json" } : {};
  const answer = await fetch(`../v1/${path}`, {
    signal,
    method,
    body: body && JSON.stringify(body),
    headers: { ...(shown ? { Authorization: `Bearer ${shown}` } : {}), ...kind, ...headers },
    credentials: "omit",
    cache: "no-store",
  });
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.detail ?? `the service answered ${answer.status}`);
}

export const id = encodeURIComponent;
