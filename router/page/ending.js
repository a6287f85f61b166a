// How an answer ended, in words.
import { count, seconds } from '/page/format.js';

export function ending(generation) {
  if (generation.error) return 'The answer failed.';
  if (generation.stopped) return `Stopped after ${count(generation.tokenCount)} tokens.`;
  const took = seconds(generation.timing.elapsed());
  const end = generation.finishReason === 'length' ? `Cut off by “max tokens” after ${took}.` : `Complete in ${took}.`;
  const winnow = generation.usage?.winnow;
  if (!winnow?.reattach_count) return end;
  return `${end} Its rank was lost on the way, and another went on${winnow.not_identical ? ' under other numerics' : ''}.`;
}
