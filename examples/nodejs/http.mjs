// A trainer over HTTP: submits a batch, reads each closed group with its tokens, and acknowledges it. No package needed.
//
//   node http.mjs http://127.0.0.1:8080 RUN BATCH.json      (PRORL_TOKEN=$(cat .state/token), of `prorl-mq up`)
import { readFile } from 'node:fs/promises';

const [url, run, file] = process.argv.slice(2);
if (!file) {
  console.error('usage: node http.mjs URL RUN BATCH.json');
  process.exit(2);
}
const token = process.env.PRORL_TOKEN;
const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function call(method, path, body) {
  for (;;) {
    const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
    if (answer.ok) return answer.json();
    if (answer.status !== 429 && answer.status !== 503) throw new Error(`${path}: ${await answer.text()}`);
    await sleep(Number(answer.headers.get('retry-after') ?? 2)); // the same call again is safe
  }
}

const batch = JSON.parse(await readFile(file, 'utf8'));
const { groups } = await call('POST', '/v1/batches', { ...batch, run_id: run });
const open = new Set(groups); // as RUN:GROUP
let after = '0';
while (open.size > 0) {
  const page = await call('GET', `/v1/runs/${run}/results?wait=20&after=${after}`);
  after = page.cursor;
  for (const { cursor, group } of page.results) {
    if (!group) continue;
    for (const sample of group.samples) {
      if (!sample.trajectory) continue;
      const trajectory = await call('GET', `/v1/jobs/${sample.job_id}/trajectory`);
      for (const { response_ids, loss_mask, logprobs } of trajectory.segments) {
        const trained = response_ids.filter((_, place) => loss_mask[place] === 1).length;
        const known = logprobs.filter((value) => value !== null).length;
        console.log(JSON.stringify({ group: group.group_id, reward: sample.reward, trained, known }));
      }
    }
    await call('POST', `/v1/runs/${run}/ack`, { cursors: [cursor] });
    open.delete(`${run}:${group.group_id}`);
  }
}
