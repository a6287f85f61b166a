// What public load generators send, in their shapes (shapes/*.json, which say where each was read), and whether they
// find in the answer what they read of it: when the first token came, how many there were, and how the stream ends.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const base = process.env.WINNOW_URL;

// The messages of a stream as these tools cut them: at empty lines.
async function messagesOf({ path, headers, body }) {
  const response = await fetch(base + path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  assert.match(response.headers.get('content-type'), /^text\/event-stream/);
  if (headers?.['x-request-id']) assert.equal(response.headers.get('x-request-id'), headers['x-request-id']);
  assert.ok(text.endsWith('\n\n'));
  return text.split('\n\n').filter((message) => message && !message.startsWith(':'));
}

function checkChunks(messages, { body, output_tokens }) {
  assert.equal(messages.pop(), 'data: [DONE]');
  const chunks = messages.map((message) => {
    assert.ok(message.startsWith('data: '), message);
    return JSON.parse(message.slice('data: '.length));
  });
  if (body.stream_options?.include_usage) {
    const last = chunks.pop();
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.completion_tokens, output_tokens);
    assert.ok(last.usage.prompt_tokens > 0);
  }
  assert.ok(chunks.length > 0);
  let ids = 0;
  let finish = null;
  for (const chunk of chunks) {
    assert.equal(chunk.choices.length, 1);
    const [choice] = chunk.choices;
    assert.equal(typeof (choice.text ?? choice.delta.content ?? ''), 'string');
    ids += choice.token_ids?.length ?? 0;
    finish = choice.finish_reason ?? finish;
    if (body.stream_options?.continuous_usage_stats) assert.ok(chunk.usage.prompt_tokens > 0);
  }
  assert.equal(finish, 'length');
  if (body.return_token_ids) assert.equal(ids, output_tokens);
}

function checkEvents(messages, { output_tokens }) {
  const events = messages.map((message) => {
    const [name, data] = message.split('\n');
    const event = JSON.parse(data.slice('data: '.length));
    assert.equal(name, `event: ${event.type}`);
    return event;
  });
  assert.match(events[0].response.id, /^resp_/);
  assert.ok(events.some((event) => event.type === 'response.output_text.delta' && event.delta));
  const last = events.at(-1);
  assert.equal(last.type, 'response.incomplete', 'the length ends it');
  assert.equal(last.response.usage.output_tokens, output_tokens);
  assert.ok(last.response.usage.input_tokens > 0);
}

for (const file of readdirSync('shapes')) {
  const { tool, requests } = JSON.parse(readFileSync(`shapes/${file}`, 'utf8'));
  for (const request of requests) {
    test(`${tool}: ${request.name}`, async () => {
      const messages = await messagesOf(request);
      (request.path === '/v1/responses' ? checkEvents : checkChunks)(messages, request);
    });
  }
}

test('what they ask before they begin', async () => {
  assert.equal((await fetch(`${base}/health`)).status, 200);
  const models = await (await fetch(`${base}/v1/models`)).json();
  assert.equal(models.data[0].id, 'demo');
  assert.ok(models.data[0].max_model_len > 0);
});

test('without the prefix cache all of a prompt is computed', async () => {
  const { requests } = JSON.parse(readFileSync('shapes/llama_benchy.json', 'utf8'));
  const content = 'The sea was calm and the wind was low. '.repeat(60);
  const cached = async (cache_prompt) => {
    const body = { ...requests[0].body, messages: [{ role: 'user', content }], stream: false, cache_prompt };
    delete body.stream_options;
    const response = await fetch(`${base}/v1/chat/completions`, { method: 'POST', body: JSON.stringify(body) });
    return (await response.json()).usage.prompt_tokens_details.cached_tokens;
  };
  await cached(true);
  assert.ok((await cached(true)) > 100);
  assert.equal(await cached(false), 0);
});
