// How evaluation harnesses score texts: echo, logprobs and max_tokens 1 (or 0) over lists of token-id prompts, as
// EleutherAI/lm-evaluation-harness does (lm_eval/models/openai_completions.py). The same log probabilities are asked
// for a second way: one token after another, each made the only one that may be drawn.
import assert from 'node:assert/strict';
import { test } from 'node:test';

const base = process.env.WINNOW_URL;

async function post(path, body) {
  const response = await fetch(base + path, { method: 'POST', body: JSON.stringify(body) });
  const answer = await response.json();
  assert.equal(response.status, 200, JSON.stringify(answer));
  return answer;
}

const texts = ['The code of nerita is 271828.', 'The code of nerita is 314159. The sea was calm.', 'A'];
const prompts = [];
for (const prompt of texts) prompts.push((await post('/tokenize', { prompt })).tokens);
const scoring = { model: 'demo', prompt: prompts, temperature: 0, max_tokens: 1, logprobs: 1, seed: 1234, echo: true };

// Activations have 8 bits of mantissa, and prompts of another length are multiplied in other tiles. The logits, up to 16,
// then differ by some units in the last place of 2^-4.
const tolerance = 2 * 2 ** -4;

// One token: its log probability after `prefix`.
async function logprobOf(prefix, id) {
  const { choices } = await post('/v1/completions', {
    model: 'demo', prompt: prefix, max_tokens: 1, temperature: 0, logprobs: 1, allowed_token_ids: [id], return_token_ids: true,
    ignore_eos: true,
  });
  assert.deepEqual(choices[0].token_ids, [id]);
  return [choices[0].logprobs.token_logprobs[0], Math.max(...Object.values(choices[0].logprobs.top_logprobs[0]))];
}

test('the tokens of prompts have the log probabilities that they have one by one', async () => {
  const { choices } = await post('/v1/completions', scoring);
  assert.equal(choices.length, prompts.length);
  for (const choice of choices) {
    const prompt = prompts[choice.index];
    const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
    for (const list of [tokens, token_logprobs, top_logprobs, text_offset]) assert.equal(list.length, prompt.length + 1);
    assert.equal(token_logprobs[0], null, 'nothing stands before the first');
    assert.equal(top_logprobs[0], null);
    assert.ok(choice.text.startsWith(texts[choice.index]));
    for (let i = 1; i < prompt.length; ++i) {
      const [own, best] = await logprobOf(prompt.slice(0, i), prompt[i]);
      assert.ok(Math.abs(token_logprobs[i] - own) < tolerance, `${choice.index}/${i}: ${token_logprobs[i]} and ${own}`);
      const top = Math.max(...Object.values(top_logprobs[i]));
      assert.ok(Math.abs(top - best) < tolerance, `${choice.index}/${i}: ${top} and ${best}`);
      // A harness takes a token for the likeliest where the two are equal.
      assert.ok(token_logprobs[i] <= top);
    }
  }
});

test('max_tokens 0 asks for the prompt alone, streams tell the same, and prompt_logprobs too', async () => {
  const whole = await post('/v1/completions', { ...scoring, max_tokens: 0 });
  const with_one = await post('/v1/completions', scoring);
  for (const [i, choice] of whole.choices.entries()) {
    assert.equal(choice.text, texts[i]);
    assert.equal(choice.finish_reason, 'length');
    assert.deepEqual(choice.logprobs.token_logprobs, with_one.choices[i].logprobs.token_logprobs.slice(0, -1));
  }
  assert.equal(whole.usage.completion_tokens, 0);

  const response = await fetch(`${base}/v1/completions`, {
    method: 'POST',
    body: JSON.stringify({ ...scoring, prompt: prompts[0], max_tokens: 0, stream: true }),
  });
  const chunks = (await response.text()).split('\n\n').filter((line) => line.startsWith('data: {'));
  const streamed = chunks.flatMap((line) => JSON.parse(line.slice(6)).choices[0].logprobs?.token_logprobs ?? []);
  assert.deepEqual(streamed, whole.choices[0].logprobs.token_logprobs);

  const apart = await post('/v1/completions', { model: 'demo', prompt: prompts[0], max_tokens: 1, prompt_logprobs: 2 });
  const told = apart.choices[0].prompt_logprobs;
  assert.equal(told[0], null);
  for (const [i, entry] of told.entries()) {
    if (i === 0) continue;
    const own = entry[prompts[0][i]];
    assert.equal(own.logprob, streamed[i]);
    assert.ok(own.rank >= 1 && (own.rank === 1) === (own.logprob === Math.max(...Object.values(entry).map((e) => e.logprob))));
  }
});
