// Outputs under generated schemas, by Ajv's word: SCHEMAS says how many (1000 for the whole run), SEED which.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Ajv2020 from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import { generator } from './schemas.mjs';

const count = Number(process.env.SCHEMAS ?? 40);
const seed = Number(process.env.SEED ?? 1);
const ajv = addFormats(new Ajv2020({ strict: false }));

async function complete(schema, i) {
  const response = await fetch(`${process.env.WINNOW_URL}/v1/completions`, {
    method: 'POST',
    body: JSON.stringify({
      prompt: `Record ${i}: `,
      max_tokens: 1500,
      seed: i,
      temperature: 1,
      response_format: { type: 'json_schema', json_schema: { name: 'record', schema } },
    }),
  });
  const answer = await response.json();
  assert.equal(response.status, 200, `${JSON.stringify(answer)} for ${JSON.stringify(schema)}`);
  return answer.choices[0];
}

test(`${count} generated schemas: each output is valid`, async () => {
  const next = generator(seed);
  const schemas = Array.from({ length: count }, () => next());
  let index = 0;
  const worker = async () => {
    while (index < count) {
      const i = index++;
      const { text, finish_reason } = await complete(schemas[i], i);
      const about = `schema ${i} of seed ${seed}: ${JSON.stringify(schemas[i])}\noutput: ${text}`;
      assert.equal(finish_reason, 'stop', about);
      const validate = ajv.compile(schemas[i]);
      assert.ok(validate(JSON.parse(text)), `${about}\n${ajv.errorsText(validate.errors)}`);
    }
  };
  await Promise.all(Array.from({ length: 8 }, worker));
});
