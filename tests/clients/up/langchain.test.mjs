// LangChain's chat model for OpenAI.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HumanMessage } from '@langchain/core/messages';
import { tool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { Report, Weather, answer, question } from './asked.mjs';

const model = new ChatOpenAI({
  model: 'demo',
  apiKey: 'any',
  temperature: 0,
  maxTokens: 200,
  maxRetries: 0,
  configuration: { baseURL: process.env.WINNOW_BASE_URL },
});
const weather = tool(() => 'rain', { name: 'weather', description: 'Says the weather.', schema: Weather });

test('invoke and stream', async () => {
  const message = await model.invoke([new HumanMessage(question)]);
  assert.match(message.content, new RegExp(answer));
  assert.ok(message.usage_metadata.total_tokens > 0);
  let text = '';
  for await (const chunk of await model.stream(question)) text += chunk.content;
  assert.equal(text, message.content);
});

test('withStructuredOutput, by schema and by a call', async () => {
  for (const method of ['jsonSchema', 'functionCalling']) {
    const object = await model.withStructuredOutput(Report, { name: 'report', method }).invoke(question);
    assert.deepEqual(Report.parse(object), object, method);
  }
});

test('tool calls', async () => {
  const message = await model.bindTools([weather], { tool_choice: 'required' }).invoke(question);
  assert.equal(message.tool_calls[0].name, 'weather');
  assert.deepEqual(Weather.parse(message.tool_calls[0].args), message.tool_calls[0].args);
});

test('the Responses API', async () => {
  const message = await model.withConfig({}).invoke(question);
  const responses = new ChatOpenAI({ ...model.lc_kwargs, useResponsesApi: true });
  assert.equal((await responses.invoke(question)).text, message.text);
});
