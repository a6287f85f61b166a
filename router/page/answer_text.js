// The answer token by token. Each carries the colour of its captured mass, where the server measured it, and can be
// pointed at to see its step.
import { element } from '/page/dom.js';
import { mass, NOT_MEASURED } from '/page/format.js';

// Upper ends of the classes mass-0 … mass-4 of style.css.
export const MASS_STEPS = [0.8, 0.9, 0.95, 0.98];

export const massClass = (value) => `mass-${MASS_STEPS.filter((step) => value >= step).length}`;

export class AnswerText {
  // `onPick(tokenIndex)`: a token was clicked.
  constructor(onPick = null) {
    this.node = element('div', 'answer-text');
    this.spans = [];
    this.shown = 0; // pieces
    if (onPick) {
      this.node.addEventListener('click', (event) => {
        const span = event.target.closest('[data-token]');
        if (span) onPick(Number(span.dataset.token));
      });
    }
  }

  update(generation) {
    for (; this.shown < generation.pieces.length; ++this.shown) {
      const piece = generation.pieces[this.shown];
      if (piece.text === '') continue;
      const span = element('span', piece.reasoning ? 'token thought' : 'token', piece.text);
      span.dataset.token = piece.first;
      span.dataset.last = piece.first + Math.max(piece.ids.length, 1) - 1;
      this.spans.push(span);
      this.node.append(span);
    }
    // Masses come a step late.
    for (const span of this.spans.slice(-8)) this.colour(span, generation);
  }

  colour(span, generation) {
    const value = generation.masses.get(Number(span.dataset.token));
    if (value === undefined || span.dataset.mass) return;
    span.dataset.mass = value;
    span.classList.add(massClass(value));
    span.title = `captured mass ${mass(value)}`;
  }

  // Marks the token whose step is shown.
  mark(tokenIndex) {
    for (const span of this.spans) {
      const within = tokenIndex >= Number(span.dataset.token) && tokenIndex <= Number(span.dataset.last);
      span.classList.toggle('picked', within);
    }
  }

  // Marks the tokens that another answer does not have at the same place.
  markDifferences(generation, other) {
    const theirs = other.ids;
    const mine = generation.ids;
    for (const span of this.spans) {
      const first = Number(span.dataset.token);
      const last = Number(span.dataset.last);
      let differs = false;
      for (let i = first; i <= last; ++i) differs ||= mine[i] !== theirs[i];
      span.classList.toggle('differs', differs);
    }
  }
}

export function massLegend() {
  const labels = ['below 0.8', '0.8', '0.9', '0.95', '0.98 to 1'];
  const legend = element('ul', 'legend', element('li', 'legend-title', 'Captured mass'));
  labels.forEach((label, i) => legend.append(element('li', '', element('span', `swatch mass-${i}`), label)));
  legend.append(element('li', '', element('span', 'swatch'), `${NOT_MEASURED} not measured`));
  return legend;
}
