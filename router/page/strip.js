// The context as a strip, from its first token to the newest: what a step attended to, what of it was resident, and
// what had to move for it. One column for each part of a trace.
import { element } from '/page/dom.js';
import { count, percent } from '/page/format.js';

const LANES = [
  { name: 'attended', top: 0, height: 56, label: 'attended' },
  { name: 'resident', top: 62, height: 14, label: 'resident' },
  { name: 'moved', top: 80, height: 14, label: 'moved for this token' },
];
const HEIGHT = 94;
const MARKS = { top: 57.5, height: 3 }; // between the first two lanes

// Positions of part i: it holds p with floor(p * parts / context) = i.
export function partRange(trace, i) {
  const parts = trace.attended.length;
  return [Math.ceil((i * trace.context_tokens) / parts), Math.ceil(((i + 1) * trace.context_tokens) / parts)];
}

// Share of the rows of each part, 0 to 1.
export function shares(trace, counts) {
  return counts.map((rows, i) => {
    const [first, end] = partRange(trace, i);
    return end > first ? rows / ((end - first) * trace.lists) : 0;
  });
}

const sum = (counts) => counts.reduce((total, n) => total + n, 0);

export class Strip {
  // `onPoint(part)`: the pointer is over a part; null when it left.
  constructor(onPoint) {
    this.canvas = element('canvas', 'strip');
    this.canvas.setAttribute('role', 'img');
    this.trace = null;
    this.pointed = null;
    this.marked = []; // parts that are named elsewhere
    this.canvas.addEventListener('pointermove', (event) => this.point(event, onPoint));
    this.canvas.addEventListener('pointerleave', () => {
      this.pointed = null;
      this.draw();
      onPoint(null);
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  point(event, onPoint) {
    if (!this.trace) return;
    const box = this.canvas.getBoundingClientRect();
    const parts = this.trace.attended.length;
    this.pointed = Math.max(0, Math.min(parts - 1, Math.floor(((event.clientX - box.left) / box.width) * parts)));
    this.draw();
    onPoint(this.pointed);
  }

  set(trace) {
    this.trace = trace;
    this.marked = [];
    this.canvas.setAttribute('aria-label', describe(trace));
    this.draw();
  }

  mark(parts) {
    this.marked = parts;
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!this.trace || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(HEIGHT * ratio);
    const context = this.canvas.getContext('2d');
    context.scale(ratio, ratio);
    const style = getComputedStyle(this.canvas);
    const column = width / this.trace.attended.length;
    const gap = column > 4 ? 1 : 0;
    for (const lane of LANES) {
      context.fillStyle = style.getPropertyValue('--track');
      context.fillRect(0, lane.top, width, lane.height);
      context.fillStyle = style.getPropertyValue(`--${lane.name}`);
      shares(this.trace, this.trace[lane.name]).forEach((share, i) => {
        if (share === 0) return;
        // Small shares matter and would vanish: the square root lifts them, and nothing that is there is invisible.
        const height = Math.max(1.5, Math.sqrt(Math.min(1, share)) * lane.height);
        context.fillRect(i * column, lane.top + lane.height - height, column - gap, height);
      });
    }
    context.fillStyle = style.color;
    for (const part of this.marked) context.fillRect(part * column - 1, MARKS.top, column + 2, MARKS.height);
    if (this.pointed !== null) {
      context.strokeStyle = style.color;
      context.strokeRect(this.pointed * column + 0.5, 0.5, Math.max(2, column - 1), HEIGHT - 1);
    }
  }
}

// For those who do not see it.
function describe(trace) {
  const rows = trace.context_tokens * trace.lists;
  const most = shares(trace, trace.attended)
    .map((share, i) => [share, i])
    .sort((a, b) => b[0] - a[0])[0];
  const [first, end] = partRange(trace, most[1]);
  return (
    `Context of ${trace.context_tokens} tokens. ${totals(trace)} Most of it in positions ${first} to ${end - 1}: ` +
    `${percent(most[0])} of their rows. Rows in all: ${rows}.`
  );
}

export function totals(trace) {
  const rows = trace.context_tokens * trace.lists;
  return (
    `Attended to ${percent(sum(trace.attended) / rows)} of the rows, ` +
    `${percent(sum(trace.resident) / rows)} resident, ${count(sum(trace.moved))} moved.`
  );
}

export function stripLegend() {
  const legend = element('ul', 'legend');
  for (const lane of LANES) {
    legend.append(element('li', '', element('span', `swatch lane-${lane.name}`), lane.label));
  }
  legend.append(element('li', '', element('span', 'swatch lane-marked'), 'listed below'));
  return legend;
}
