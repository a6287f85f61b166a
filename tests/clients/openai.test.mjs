// The official client of OpenAI's API, unchanged, against a server that answers every prompt with its own text. A
// conversation's prompt is {variables};role:content;...;assistant: so that a tool call in a message comes back as one.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.WINNOW_BASE_URL, apiKey: 'any', maxRetries: 0 });
const user = (content) => [{ role: 'user', content }];
const tools = [{ type: 'function', function: { name: 'add', description: 'a + b', parameters: { type: 'object' } } }];
const call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}</tool_call>';

test('lists the model under its names', async () => {
  const names = (await client.models.list()).data.map((model) => model.id);
  assert.deepEqual(names, ['echo', 'mirror']);
  assert.equal((await client.models.retrieve('mirror')).id, 'mirror');
});

test('completes a prompt', async () => {
  const completion = await client.completions.create({ model: 'echo', prompt: 'ab', max_tokens: 5, seed: 1, logprobs: 0 });
  assert.equal(completion.choices[0].text, '<s>ab<s>a');
  assert.equal(completion.choices[0].finish_reason, 'length');
  assert.equal(completion.usage.completion_tokens, 5);
});

test('chats, whole and streamed, with usage', async () => {
  const messages = user([{ type: 'text', text: 'hi' }]);
  const whole = await client.chat.completions.create({ model: 'mirror', messages, max_completion_tokens: 18, user: 'me' });
  assert.equal(whole.model, 'mirror');
  assert.equal(whole.choices[0].message.content, 'user:hi;assistant:');
  const stream = await client.chat.completions.create({
    model: 'echo', messages, max_completion_tokens: 18, stream: true, stream_options: { include_usage: true },
  });
  let text = '', usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 18);
});

test('puts streamed tool calls together', async () => {
  const runner = client.chat.completions.stream({ model: 'echo', messages: user(call), tools, max_completion_tokens: 400 });
  const pieces = [];
  runner.on('tool_calls.function.arguments.delta', (event) => pieces.push(event.arguments_delta));
  const message = (await runner.finalChatCompletion()).choices[0].message;
  assert.equal(message.tool_calls[0].function.name, 'add');
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { a: 1, b: [2, '}'] });
  assert.ok(pieces.length > 1, 'arguments come in pieces');
});

test('answers with tool calls and takes their results', async () => {
  const first = await client.chat.completions.create({
    model: 'echo', messages: user(call), tools, parallel_tool_calls: false, max_completion_tokens: 400,
  });
  const { message } = first.choices[0];
  assert.equal(message.tool_calls.length, 1);
  const second = await client.chat.completions.create({
    model: 'echo', max_completion_tokens: 1000,
    messages: [...user('add'), message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: '3' }],
  });
  assert.match(second.choices[0].message.content, /"arguments":\{"a":1,"b":\[2,"\}"\]\}.*tool:3;/);
});

test('hears what is wrong', async () => {
  const refused = (fields) => client.chat.completions.create({ model: 'echo', messages: user('hi'), ...fields });
  await assert.rejects(refused({ temprature: 0 }), { status: 400, param: 'temprature', code: 'unknown_parameter' });
  const schema = { type: 'array', uniqueItems: true };
  const response_format = { type: 'json_schema', json_schema: { name: 'list', schema } };
  await assert.rejects(refused({ response_format }), { status: 400, param: 'response_format', message: /uniqueItems/ });
  await assert.rejects(refused({ model: 'gpt-4' }), { status: 404, code: 'model_not_found' });
});

test('ends a stream that is aborted', async () => {
  const stream = await client.chat.completions.create({ model: 'echo', messages: user('hi'), max_tokens: 100000, stream: true });
  let chunks = 0;
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    if (++chunks === 3) stream.controller.abort();
  }
  assert.ok(chunks < 100);
});
