// Vercel's AI SDK with its provider for servers that are compatible with OpenAI's.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, streamText, tool } from 'ai';
import { Report, Weather, answer, question } from './asked.mjs';

const provider = createOpenAICompatible({
  name: 'winnow',
  baseURL: process.env.WINNOW_BASE_URL,
  apiKey: 'any',
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const asked = { model: provider('demo'), prompt: question, temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const tools = { weather: tool({ description: 'Says the weather.', inputSchema: Weather }) };

test('generateText', async () => {
  const { text, finishReason, usage } = await generateText(asked);
  assert.match(text, new RegExp(answer));
  assert.equal(finishReason, 'stop');
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
});

test('streamText', async () => {
  const result = streamText(asked);
  let text = '';
  for await (const piece of result.textStream) text += piece;
  assert.equal(text, (await generateText(asked)).text);
  assert.ok((await result.usage).outputTokens > 0);
});

test('generateObject', async () => {
  const { object } = await generateObject({ ...asked, schema: Report });
  assert.deepEqual(Report.parse(object), object);
});

test('tools', async () => {
  // One call: the demo model would go on calling until it is cut off.
  const forced = { ...asked, tools, toolChoice: 'required', providerOptions: { winnow: { parallel_tool_calls: false } } };
  const { toolCalls, finishReason } = await generateText(forced);
  assert.equal(toolCalls[0].toolName, 'weather');
  assert.deepEqual(Weather.parse(toolCalls[0].input), toolCalls[0].input);
  assert.equal(finishReason, 'tool-calls');
  const streamed = streamText(forced);
  const calls = await streamed.toolCalls;
  assert.deepEqual(calls[0].input, toolCalls[0].input);
});
