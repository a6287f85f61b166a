// The Node client against a running cluster.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Client, WinnowError } from 'winnow-client';

const address = process.env.WINNOW_GRPC;
const client = new Client(address, { timeoutMs: 60_000 });
after(() => client.close());

const question = 'The code of nerita is 271828. What is the code of nerita?';
const expected = 'The code of nerita is 271828.';
const chat = [{ role: 'user', content: question }];
const endless = { temperature: 0, maxTokens: 3500, fields: { ignoreEos: true } };

const fails = (promise, code, words) =>
  assert.rejects(promise, (error) => {
    assert.ok(error instanceof WinnowError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, words);
    return true;
  });

// Reads until the first output has so many tokens.
const readTo = async (deltas, answer, tokens) => {
  while (answer.outputs[0].tokens.length < tokens) assert.ok(!(await deltas.next()).done);
};
const idsOf = (answer) => answer.outputs[0].tokens.map((token) => token.id);

test('a chat is answered piece by piece', async () => {
  const answer = await client.chat(chat, { temperature: 0, maxTokens: 48 });
  assert.notEqual(answer.requestId, '');
  assert.ok(answer.promptTokens > 10);
  const pieces = [];
  for await (const delta of answer) pieces.push(delta.text);
  assert.ok(pieces.length > 1);
  assert.equal(pieces.join(''), expected);
  assert.equal(answer.text, expected);
  assert.equal(answer.outputs[0].finishReason, 'stop');
  assert.equal(answer.outputs[0].stopMatch, undefined);
  assert.equal(answer.outputs[0].tokens.length, answer.usage.completionTokens);
  assert.ok(answer.outputs[0].selection.decodeSteps > 0);
});

test('text and its tokens are the same prompt', async () => {
  const ids = await client.tokenize(question);
  assert.equal(await client.detokenize(ids, { skipSpecialTokens: true }), question);
  const greedy = { temperature: 0, maxTokens: 16 };
  const ofText = await (await client.generate(question, greedy)).readAll();
  const ofIds = await (await client.generate(ids, greedy)).readAll();
  assert.equal(ofText.promptTokens, ids.length);
  assert.deepEqual(idsOf(ofText), idsOf(ofIds));
});

test('parameters reach the server', async () => {
  const parameters = { n: 2, seed: 7, topP: 0.9, stop: ' is ', selection: 'exact-token', budget: 64, requestId: 'mine' };
  const answer = await (await client.chat(chat, parameters)).readAll();
  assert.equal(answer.requestId, 'mine');
  assert.match(answer.selection, /exact-token.*budget=64/);
  assert.equal(answer.outputs.length, 2);
  const stopped = await (await client.chat(chat, { temperature: 0, stop: [' is '] })).readAll();
  assert.deepEqual([stopped.text, stopped.outputs[0].stopMatch], ['The code of nerita', ' is ']);
});

test('other fields go as they are named in the protocol', async () => {
  const fields = { structuredOutput: { regex: '[0-9]{4}' }, topLogprobs: 2, sampling: { minP: 0.1 } };
  const answer = await (await client.generate('A year: ', { seed: 3, fields })).readAll();
  assert.match(answer.text, /^[0-9]{4}$/);
  assert.equal(answer.outputs[0].tokens[0].topLogprobs.length, 2);
});

test('a fork goes on as its source does', async () => {
  const source = await client.generate('On and on', endless);
  const deltas = source[Symbol.asyncIterator]();
  await readTo(deltas, source, 4);
  const fork = await (await client.fork(source.requestId, { maxTokens: 300 })).readAll();
  await readTo(deltas, source, 300);
  source.cancel();
  assert.ok(fork.forkedTokens >= 4);
  assert.deepEqual(idsOf(fork), idsOf(source).slice(fork.forkedTokens, 300));
});

test('an answer is resumed where its stream was lost', async () => {
  const parameters = { ...endless, maxTokens: 120, temperature: 1, seed: 7 };
  const whole = await (await client.generate('On and on', parameters)).readAll();
  const lost = await client.generate('On and on', { resumable: true, ...parameters });
  await readTo(lost[Symbol.asyncIterator](), lost, 5);
  lost.cancel();
  const resumed = await (await client.resume(lost)).readAll();
  assert.deepEqual(idsOf(resumed), idsOf(whole));
  assert.equal(resumed.text, whole.text);
  await assert.rejects(client.resume(whole), TypeError);
});

test('requests end by abort, cancel, a signal, leaving the loop, and the deadline', async () => {
  const aborted = await client.generate('On and on', { requestId: 'to-be-aborted', ...endless });
  await client.abort('to-be-aborted');
  await fails(aborted.readAll(), 'CANCELLED', /./);
  await fails(client.abort('never-begun'), 'NOT_FOUND', /never-begun/);

  const cancelled = await client.generate('On and on', endless);
  cancelled.cancel();
  await fails(cancelled.readAll(), 'CANCELLED', /./);

  const controller = new AbortController();
  const signalled = await client.generate('On and on', { signal: controller.signal, ...endless });
  controller.abort();
  await fails(signalled.readAll(), 'CANCELLED', /./);

  const left = await client.generate('On and on', { requestId: 'left', ...endless });
  for await (const delta of left) if (delta.tokens.length > 0) break;
  // The server hears of it a moment later.
  for (let gone = false; !gone; ) {
    const fork = client.fork('left').then((answer) => answer.cancel());
    gone = await fork.then(() => false, (error) => error.code === 'NOT_FOUND');
  }

  const hurried = new Client(address, { timeoutMs: 300 });
  await fails(hurried.generate('On and on', endless).then((answer) => answer.readAll()), 'DEADLINE_EXCEEDED', /./);
  hurried.close();
});

test('models and server are described', async () => {
  const [model] = await client.models();
  assert.equal(model.maxContextTokens, 4096);
  assert.match((await client.serverInfo()).optionsYaml, /max-queue/);
});

test('errors are what the server said', async () => {
  await fails(client.generate('x', { model: 'another' }), 'NOT_FOUND', /another/);
  await fails(client.generate('x', { selection: 'psychic' }), 'INVALID_ARGUMENT', /psychic/);
  await assert.rejects(client.generate('x', { maxToken: 1 }), /TypeError.*maxToken/s);
  const nobody = new Client('127.0.0.1:1');
  await fails(nobody.tokenize('x'), 'UNAVAILABLE', /ECONNREFUSED|connect/);
  nobody.close();
});
