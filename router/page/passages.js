// The words behind the parts of the context that a step attended to.
import { detokenize, tokenize } from '/page/api.js';
import { partRange, shares } from '/page/strip.js';
import { quantile } from '/page/timing.js';

export class Context {
  // Of an answer to these messages.
  constructor(messages, generation) {
    this.messages = messages;
    this.generation = generation;
    this.prompt = null; // token ids, fetched once
    this.texts = new Map();
  }

  async text(first, end) {
    const name = `${first}-${end}`;
    if (!this.texts.has(name)) {
      this.prompt ??= tokenize(this.messages);
      const ids = [...(await this.prompt), ...this.generation.ids].slice(first, end);
      this.texts.set(name, ids.length > 0 ? await detokenize(ids) : '');
    }
    return this.texts.get(name);
  }

  // The passages that stand out in what a step attended to, the most prominent first: [{part, share, first, text}]. With some
  // words around them, as a part may begin within a sentence.
  async passages(trace, most = 5) {
    const found = prominent(trace).slice(0, most);
    return Promise.all(
      found.map(async ({ share, part }) => {
        const [first, end] = partRange(trace, part);
        const around = Math.ceil((end - first) / 2);
        return { part, share, first, text: await this.text(Math.max(0, first - around), end + around) };
      }),
    );
  }
}

const NEIGHBOURS = 6; // on either side
const ALWAYS_TOKENS = 160; // the newest ones, which are attended to whatever they say

// Parts by how much more they were attended to than the median of those around them. Many heads look at what is near,
// less and less with the distance: what stands out of that was looked for.
export function prominent(trace) {
  const all = shares(trace, trace.attended);
  const last = all.length - Math.ceil((all.length * ALWAYS_TOKENS) / trace.context_tokens);
  const found = [];
  for (let part = 1; part < last; ++part) {
    const around = [...all.slice(Math.max(0, part - NEIGHBOURS), part), ...all.slice(part + 1, part + 1 + NEIGHBOURS)];
    const excess = all[part] - quantile(around, 0.5);
    if (excess > 0) found.push({ part, share: all[part], excess });
  }
  return found.sort((a, b) => b.excess - a.excess);
}
