// Compiled, not run: the types are those of what the client does.
import { Client, WinnowError, type Answer, type Delta, type Output } from 'winnow-client';

export async function use(): Promise<string> {
  const client = new Client('127.0.0.1:8001', { apiKey: 'key', timeoutMs: 1000 });
  const answer: Answer = await client.chat([{ role: 'user', content: 'hello' }], { maxTokens: 5, stop: ['x'] });
  let text = '';
  for await (const delta of answer) {
    const piece: Delta = delta;
    text += piece.text + piece.tokens.map((token) => token.id).join();
  }
  const outputs: readonly Output[] = answer.outputs;
  const total: number | undefined = answer.usage?.completionTokens;
  const ids: number[] = await client.tokenize(text);
  await (await client.generate(ids, { signal: new AbortController().signal })).readAll();
  await client.fork(answer.requestId, { maxTokens: 3 }).catch((error: unknown) => {
    if (error instanceof WinnowError) text += error.code;
  });
  // @ts-expect-error: a prompt is no number
  await client.generate(5);
  // @ts-expect-error: no such parameter
  await client.generate('x', { maxToken: 5 });
  return `${text} ${outputs.length} ${total}`;
}
