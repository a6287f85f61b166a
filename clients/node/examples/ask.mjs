// Asks a running server a question about a text: node ask.mjs HOST:PORT FILE QUESTION
import { readFileSync } from 'node:fs';
import { Client, WinnowError } from 'winnow-client';

const [address, path, question] = process.argv.slice(2);
const content = `${readFileSync(path, 'utf8')}\n\n${question}`;

const client = new Client(address, { apiKey: process.env.WINNOW_API_KEY, timeoutMs: 120_000 });
try {
  const answer = await client.chat([{ role: 'user', content }], { maxTokens: 100, temperature: 0, budget: 256 });
  for await (const delta of answer) process.stdout.write(delta.text);
  console.log(`\n(${answer.usage.promptTokens} tokens read, ${answer.usage.completionTokens} written)`);
} catch (error) {
  if (!(error instanceof WinnowError)) throw error;
  console.error(error.message);
  process.exitCode = 1;
} finally {
  client.close();
}
