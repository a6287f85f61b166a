// The official client of OpenAI's API, chats and completions.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { Report, Weather, answer, question } from './asked.mjs';

const client = new OpenAI({ baseURL: process.env.WINNOW_BASE_URL, maxRetries: 0 });
const messages = [{ role: 'user', content: question }];
const asked = { model: 'demo', messages, temperature: 0, max_completion_tokens: 32 };
const tools = [zodFunction({ name: 'weather', description: 'Says the weather.', parameters: Weather })];

test('lists the model under each of its names, and knows no other', async () => {
  const names = (await client.models.list()).data.map((model) => model.id);
  assert.deepEqual(names, ['demo', 'alias']);
  assert.equal((await client.chat.completions.create({ ...asked, model: 'alias' })).model, 'alias');
  await assert.rejects(client.chat.completions.create({ ...asked, model: 'gpt-4' }), {
    status: 404,
    code: 'model_not_found',
    message: /"demo", "alias"/,
  });
});

test('answers, whole and streamed alike', async () => {
  const whole = await client.chat.completions.create(asked);
  assert.match(whole.choices[0].message.content, new RegExp(answer));
  assert.equal(whole.choices[0].finish_reason, 'stop');
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  let text = '';
  let last;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    last = chunk;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
});

test('tells log probabilities', async () => {
  const { choices } = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 3 });
  const tokens = choices[0].logprobs.content;
  assert.ok(tokens.length > 2);
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 3);
    assert.equal(token.logprob, token.top_logprobs[0].logprob, 'greedy takes the likeliest');
    assert.ok(token.logprob <= 0);
  }
});

test('writes what a zod schema asks for', async () => {
  const completion = await client.chat.completions.parse({
    ...asked,
    max_completion_tokens: 200,
    response_format: zodResponseFormat(Report, 'report'),
  });
  assert.deepEqual(Report.parse(completion.choices[0].message.parsed), completion.choices[0].message.parsed);
});

test('calls the tool that it must call, in pieces that make the whole', async () => {
  const forced = { ...asked, max_completion_tokens: 200, tools, tool_choice: 'required', parallel_tool_calls: false };
  const whole = await client.chat.completions.parse(forced);
  const [call] = whole.choices[0].message.tool_calls;
  assert.equal(whole.choices[0].finish_reason, 'tool_calls');
  assert.deepEqual(Weather.parse(call.function.parsed_arguments), call.function.parsed_arguments);

  const runner = client.chat.completions.stream(forced);
  let pieces = 0;
  runner.on('tool_calls.function.arguments.delta', () => ++pieces);
  const streamed = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
  assert.equal(streamed.function.arguments, call.function.arguments);
  assert.ok(pieces > 1, 'arguments come in pieces');

  const next = await client.chat.completions.create({
    ...asked,
    tools,
    messages: [...messages, whole.choices[0].message, { role: 'tool', tool_call_id: call.id, content: '"rain"' }],
  });
  assert.equal(typeof next.choices[0].message.content, 'string');
});

test('ends a stream that is aborted, and serves the next', async () => {
  const controller = new AbortController();
  const long = { ...asked, max_completion_tokens: 2000, ignore_eos: true, stream: true };
  const stream = await client.chat.completions.create(long, { signal: controller.signal });
  let chunks = 0;
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    if (++chunks === 3) controller.abort();
  }
  assert.ok(chunks < 100);
  assert.match((await client.chat.completions.create(asked)).choices[0].message.content, new RegExp(answer));
});

test('tells how far the prompt is', async () => {
  const content = `${'The sea was calm and the wind was low. '.repeat(80)}${question}`;
  const stream = await client.chat.completions.create({
    ...asked,
    messages: [{ role: 'user', content }],
    stream: true,
    winnow: { prompt_progress: true },
  });
  const told = [];
  let text = '';
  for await (const chunk of stream) {
    if (chunk.winnow?.prompt_progress) told.push(chunk.winnow.prompt_progress);
    text += chunk.choices[0]?.delta?.content ?? '';
  }
  assert.ok(told.length >= 1);
  for (const { prompt_tokens, computed_tokens, cached_tokens } of told) {
    assert.ok(cached_tokens <= computed_tokens && computed_tokens <= prompt_tokens && prompt_tokens > 500);
  }
  assert.ok(text.length > 0);
});
