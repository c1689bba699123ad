// The same trainer over Redis alone: one stream takes its batch, another brings the answer and the closed groups.
//
//   npm install      (ioredis and @msgpack/msgpack)
//   node redis.mjs redis://127.0.0.1:6379 TENANT RUN BATCH.json      (PRORL_NAMESPACE, if not prorl;
//                                                           `prorl-mq up` prints its Redis: unix:///PATH)
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { inflateSync } from 'node:zlib';
import { decode, encode } from '@msgpack/msgpack';
import Redis from 'ioredis';

const [url, tenant, run, file] = process.argv.slice(2);
if (!file) {
  console.error('usage: node redis.mjs REDIS_URL TENANT RUN BATCH.json');
  process.exit(2);
}
const prefix = `{${process.env.PRORL_NAMESPACE ?? 'prorl'}}:`;
const results = `${prefix}results:${tenant}:${run}`;
const redis = new Redis(url);

// A stored trajectory is a byte that says how it is packed, then MessagePack.
async function trajectoryOf(sample) {
  if (sample.trajectory.startsWith('file:')) throw new Error(`${sample.trajectory} is read from the deployment's storage`);
  const blob = await redis.getBuffer(sample.trajectory);
  const packed = blob.subarray(1);
  return decode(blob[0] === 1 ? inflateSync(packed) : packed);
}

// Segments that begin alike name an earlier one, and how many of its ids they begin with.
function segmentsOf({ segments, tree }) {
  const whole = [];
  return (tree ?? []).reduce((made, { base, shared, ids, prompt_tokens, ...rest }) => {
    whole.push([...(whole[base] ?? []).slice(0, shared), ...ids]);
    return [...made, { ...rest, response_ids: whole.at(-1).slice(prompt_tokens) }];
  }, segments ?? []);
}

async function unless(known, command) {
  try {
    return await command;
  } catch (error) {
    if (!String(error).includes(known)) throw error;
  }
}

async function register() {
  await redis.sadd(`${prefix}intakes:${tenant}`, run);
  await unless('NOPERM', redis.sadd(`${prefix}intakes`, `${tenant}:${run}`)); // of a server without users of its own
}

// The service makes the group with the first entry: until then there is nothing to read.
const read = (from) => redis.xreadgroupBuffer('GROUP', 'trainer', 'nodejs', 'BLOCK', 5000, 'STREAMS', results, from);

// First what was delivered before and not acknowledged ("0"), then what is new (">").
async function* entries() {
  for (let from = '0'; ; ) {
    const found = await unless('NOGROUP', read(from));
    if (found === undefined) await new Promise((wake) => setTimeout(wake, 200));
    const rows = found ? found[0][1] : [];
    if (rows.length === 0) from = '>';
    for (const [id, [field, data]] of rows) yield { id: id.toString(), field: field.toString(), value: decode(data) };
    if (from !== '>') from = rows[rows.length - 1][0].toString();
  }
}

const batch = { ...JSON.parse(await readFile(file, 'utf8')), run_id: run };
const reply = randomUUID(); // an answer to an earlier call may still lie on the stream
const submit = () =>
  redis.xadd(`${prefix}intake:${tenant}:${run}`, '*', 'm', Buffer.from(encode({ type: 'submit', reply, batch })));
await register();
await submit();
let open = null; // groups as RUN:GROUP, once the batch was accepted
let refused = null;
const closed = new Set();
for await (const { id, field, value } of entries()) {
  if (field === 'a') {
    if (value.reply === reply && value.ok) open = value.value.groups;
    else if (value.reply === reply && value.status === 429) setTimeout(submit, value.retry_after_ms ?? 2000);
    else if (value.reply === reply) refused = `${value.status}: ${value.error}`;
  } else if (field === 'r') {
    for (const sample of value.samples) {
      if (!sample.trajectory) continue;
      const trajectory = await trajectoryOf(sample);
      for (const { response_ids, loss_mask, logprobs } of segmentsOf(trajectory)) {
        const trained = response_ids.filter((_, place) => loss_mask[place] === 1).length;
        const known = logprobs.filter((number) => number !== null).length;
        console.log(JSON.stringify({ group: value.group_id, reward: sample.reward, trained, known }));
      }
    }
    closed.add(`${run}:${value.group_id}`);
  }
  await redis.xack(results, 'trainer', id);
  if (refused) throw new Error(refused);
  if (open?.every((group) => closed.has(group))) break;
}
redis.disconnect();
