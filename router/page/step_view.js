// What one step of an answer did: the strip, a slider over the answer's tokens, and the passages that it looked at.
import { element, show } from '/page/dom.js';
import { count, mass, percent } from '/page/format.js';
import { partRange, shares, Strip, stripLegend, totals } from '/page/strip.js';

const SETTLED_MS = 250;

let views = 0;

export class StepView {
  constructor(answerText) {
    this.answerText = answerText;
    this.generation = null;
    this.context = null;
    this.follows = true; // the newest token, until somebody picks one
    this.timer = null;
    const id = `step-${++views}`;
    this.strip = new Strip((part) => this.point(part));
    this.slider = element('input', 'slider');
    Object.assign(this.slider, { type: 'range', min: 1, max: 1, value: 1, id });
    this.slider.addEventListener('input', () => this.pick(Number(this.slider.value)));
    const label = element('label', '', 'Token of the answer');
    label.htmlFor = id;
    this.output = element('output', 'step-text');
    this.output.htmlFor = id;
    this.passages = element('ol', 'passages');
    this.standOut = element('p', 'note', 'Attended to more than what is around it (share of its rows, position):');
    this.standOut.hidden = true;
    this.note = element('p', 'note');
    this.newest = element('span');
    this.body = element(
      'div',
      'step-body',
      element('div', 'scale', element('span', '', 'first token of the context'), this.newest),
      this.strip.canvas,
      stripLegend(),
      element('div', 'slide', label, this.slider),
      this.output,
      this.standOut,
      this.passages,
    );
    this.body.hidden = true;
    this.node = element('section', 'step', this.note, this.body);
    this.node.setAttribute('aria-label', 'What each step attended to');
  }

  update(generation) {
    this.generation = generation;
    if (generation.traceRefused) this.note.textContent = `Not shown here: ${generation.traceRefused}`;
    if (generation.traces.size === 0) return;
    show(this.body, true);
    const last = Math.max(...generation.traces.keys());
    this.slider.max = last;
    if (this.follows) this.show(last);
  }

  // The answer is complete, and `context` knows its words.
  finish(context) {
    this.context = context;
    if (this.generation.traces.size === 0) return;
    // What ends an answer has no words.
    const said = [...this.generation.traces.keys()].filter((token) => this.pieceOf(token)?.text.trim());
    this.show(this.follows && said.length > 0 ? Math.max(...said) : Number(this.slider.value));
  }

  pieceOf(tokenIndex) {
    return this.generation.pieces.find((each) => tokenIndex >= each.first && tokenIndex < each.first + each.ids.length);
  }

  pick(tokenIndex) {
    this.follows = false;
    this.show(Math.max(1, tokenIndex));
  }

  show(tokenIndex) {
    const trace = this.generation.traces.get(tokenIndex);
    if (!trace) return;
    this.slider.value = tokenIndex;
    this.strip.set(trace);
    this.newest.textContent = `newest, ${count(trace.context_tokens)}`;
    const piece = this.pieceOf(tokenIndex);
    const value = this.generation.masses.get(tokenIndex);
    this.summary =
      `Token ${tokenIndex + 1}${piece?.text ? ` “${piece.text.trim()}”` : ''}: ${totals(trace)}` +
      (value === undefined ? '' : ` Captured mass ${mass(value)}.`);
    this.output.textContent = this.summary;
    this.slider.setAttribute('aria-valuetext', this.summary);
    if (!this.context) return;
    this.answerText.mark(tokenIndex);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.showPassages(trace), SETTLED_MS);
  }

  async showPassages(trace) {
    const found = await this.context.passages(trace).catch(() => []);
    if (this.strip.trace === trace) this.strip.mark(found.map(({ part }) => part));
    show(this.standOut, found.length > 0);
    this.passages.replaceChildren(
      ...found.map(({ share, first, text }) =>
        element(
          'li',
          '',
          element('span', 'where', `${percent(share)} at ${count(first)}`),
          element('q', '', text.trim()),
        ),
      ),
    );
  }

  async point(part) {
    const trace = this.strip.trace;
    this.pointed = part;
    if (part === null || !trace) {
      this.output.textContent = this.summary ?? '';
      return;
    }
    const [first, end] = partRange(trace, part);
    const at = (name) => percent(shares(trace, trace[name])[part]);
    const said =
      `Positions ${first} to ${end - 1}: ${at('attended')} attended, ${at('resident')} resident, ` +
      `${trace.moved[part]} rows moved.`;
    this.output.textContent = said;
    if (!this.context) return;
    const text = await this.context.text(first, end).catch(() => '');
    if (this.pointed === part && text) this.output.textContent = `${said} “${text.trim()}”`;
  }
}
