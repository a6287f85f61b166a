// The official client, Responses API.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { Report, Weather, answer, question } from './asked.mjs';

const client = new OpenAI({ baseURL: process.env.WINNOW_BASE_URL, maxRetries: 0 });
const asked = { model: 'demo', input: question, temperature: 0, max_output_tokens: 200 };
const tools = [zodResponsesFunction({ name: 'weather', description: 'Says the weather.', parameters: Weather })];

test('answers a string and a list of items alike', async () => {
  const response = await client.responses.create(asked);
  assert.match(response.id, /^resp_/);
  assert.equal(response.status, 'completed');
  assert.match(response.output_text, new RegExp(answer));
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
  const input = [{ role: 'user', content: [{ type: 'input_text', text: question }] }];
  assert.equal((await client.responses.create({ ...asked, input })).output_text, response.output_text);
  const chat = await client.chat.completions.create({
    model: 'demo',
    messages: [{ role: 'user', content: question }],
    temperature: 0,
  });
  assert.equal(chat.choices[0].message.content, response.output_text);
});

test('streams typed events in order that add up to the whole', async () => {
  const whole = await client.responses.create(asked);
  const events = [];
  for await (const event of await client.responses.create({ ...asked, stream: true })) events.push(event);
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, i) => i),
  );
  const types = events.map((event) => event.type).filter((type, i, all) => type !== all[i - 1]);
  assert.deepEqual(types, [
    'response.created',
    'response.in_progress',
    'response.output_item.added',
    'response.content_part.added',
    'response.output_text.delta',
    'response.output_text.done',
    'response.content_part.done',
    'response.output_item.done',
    'response.completed',
  ]);
  const final = await client.responses.stream(asked).finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.deepEqual(final.usage.output_tokens, whole.usage.output_tokens);
});

test('says that an answer was cut off', async () => {
  const response = await client.responses.create({ ...asked, max_output_tokens: 2 });
  assert.equal(response.status, 'incomplete');
  assert.deepEqual(response.incomplete_details, { reason: 'max_output_tokens' });
});

test('writes what a zod schema asks for', async () => {
  const response = await client.responses.parse({ ...asked, text: { format: zodTextFormat(Report, 'report') } });
  assert.deepEqual(Report.parse(response.output_parsed), response.output_parsed);
});

test('calls a tool, streamed too, and goes on from its result', async () => {
  const forced = { ...asked, tools, tool_choice: 'required', parallel_tool_calls: false };
  const response = await client.responses.parse(forced);
  const call = response.output.find((item) => item.type === 'function_call');
  assert.deepEqual(Weather.parse(call.parsed_arguments), call.parsed_arguments);
  const runner = client.responses.stream(forced);
  let streamed = '';
  runner.on('response.function_call_arguments.delta', (event) => (streamed += event.delta));
  await runner.finalResponse();
  assert.equal(streamed, call.arguments);
  const input = [
    { role: 'user', content: question },
    { type: 'function_call', call_id: call.call_id, name: call.name, arguments: call.arguments },
    { type: 'function_call_output', call_id: call.call_id, output: '"rain"' },
  ];
  const next = await client.responses.create({ ...asked, tools, tool_choice: 'auto', input });
  assert.equal(typeof next.output_text, 'string');
});

test('tells log probabilities where they are asked for', async () => {
  const include = ['message.output_text.logprobs'];
  const response = await client.responses.create({ ...asked, include, top_logprobs: 2 });
  const { logprobs } = response.output[0].content[0];
  assert.ok(logprobs.length > 2 && logprobs.every((token) => token.top_logprobs.length === 2));
});

test('keeps nothing, and says so', async () => {
  const refused = (fields) => client.responses.create({ ...asked, ...fields });
  const unsupported = { status: 400, code: 'unsupported_parameter' };
  await assert.rejects(refused({ previous_response_id: 'resp_1' }), { ...unsupported, param: 'previous_response_id' });
  await assert.rejects(refused({ store: true }), { ...unsupported, param: 'store' });
  assert.equal((await refused({ store: false })).store, false);
  await assert.rejects(refused({ tools: [{ type: 'web_search' }] }), { status: 400, param: 'tools[0].type' });
  await assert.rejects(refused({ input: [{ role: 'wizard', content: 'x' }] }), { status: 400, param: 'input[0].role' });
  await assert.rejects(refused({ max_output_tokens: 99999 }), { status: 400, param: 'max_output_tokens' });
});
