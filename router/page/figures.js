// The figures of an answer, as name and value: those that this page measured, and those that the server tells.
import { element } from '/page/dom.js';
import { bytes, count, mass, NOT_MEASURED, percent, seconds } from '/page/format.js';

export function figuresOf(generation) {
  const { timing, usage } = generation;
  const winnow = usage?.winnow ?? {};
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  return [
    ['Time to first token', seconds(timing.first)],
    ['Between tokens, mean', seconds(timing.mean())],
    ['Between tokens, median', seconds(timing.median())],
    ['Between tokens, p99', seconds(timing.p99())],
    ['Tokens', count(usage?.completion_tokens ?? generation.tokenCount)],
    ['Prompt tokens cached', usage ? `${count(cached)} of ${count(usage.prompt_tokens)}` : NOT_MEASURED],
    ['Captured mass, mean', bounded(mass(winnow.captured_mass_mean), winnow)],
    ['Captured mass, p5', bounded(mass(winnow.captured_mass_p5), winnow)],
    ['Rows streamed', count(winnow.streamed_rows)],
    ['Bytes streamed', bytes(winnow.streamed_bytes)],
    [
      'Rows that were there',
      winnow.hit_ratio === null || winnow.hit_ratio === undefined ? NOT_MEASURED : percent(winnow.hit_ratio),
    ],
    [
      'Resident of context',
      winnow.resident_rows ? `${count(winnow.resident_rows)} of ${count(winnow.context_tokens)}` : NOT_MEASURED,
    ],
  ];
}

const bounded = (text, winnow) => (winnow.captured_mass_is_bound ? `≥ ${text}` : text);

export function fillFigures(list, figures) {
  list.replaceChildren(
    ...figures.map(([name, value]) => {
      const pair = element('div', '', element('dt', '', name), element('dd', '', value));
      return pair;
    }),
  );
}
