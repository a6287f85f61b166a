// The same question under several selections, one after the other, held against the first.
import { AnswerText, massLegend } from '/page/answer_text.js';
import { byId, element, show } from '/page/dom.js';
import { ending } from '/page/ending.js';
import { figuresOf } from '/page/figures.js';
import { count, percent, seconds } from '/page/format.js';
import { generate } from '/page/generation.js';

const FEW_PARTS = 8; // of a trace: masses come with it, and no strip is drawn here

// Tokens that two answers have at the same places, and where they part.
export function compareTokens(reference, other) {
  const [a, b] = [reference.ids, other.ids];
  let same = 0;
  for (let i = 0; i < Math.max(a.length, b.length); ++i) same += a[i] !== undefined && a[i] === b[i];
  let parts = 0;
  while (parts < a.length && parts < b.length && a[parts] === b[parts]) ++parts;
  const identical = same === a.length && same === b.length;
  return { same, of: Math.max(a.length, b.length), partsAt: identical ? null : parts };
}

function sameness(reference, other) {
  if (reference === other) return 'reference';
  const { same, of, partsAt } = compareTokens(reference, other);
  return partsAt === null
    ? `all ${count(of)} the same`
    : `${count(same)} of ${count(of)}, first differs at ${count(partsAt + 1)}`;
}

// Times to the first token say little where some prompts were there already.
function cacheNote(columns) {
  const cached = columns.map((column) => column.generation.usage?.prompt_tokens_details?.cached_tokens ?? 0);
  return new Set(cached).size > 1
    ? ' Some found their prompt in the prefix cache: their times to the first token are shorter by that.'
    : '';
}

class Column {
  constructor(name, place) {
    this.name = name;
    this.text = new AnswerText();
    this.status = element('p', 'note', 'Waits for its turn');
    this.problem = element('p', 'problem');
    this.problem.hidden = true;
    this.node = element('article', 'card', element('h3', '', name), this.status, this.text.node, this.problem);
    this.node.dataset.selection = name;
    this.generation = null;
    place.append(this.node);
  }

  async run(body, signal) {
    this.status.classList.add('working');
    const clock = setInterval(() => {
      const tokens = this.generation?.tokenCount ?? 0;
      const elapsed = seconds(performance.now() - began);
      const progress = this.generation?.promptProgress;
      const read = progress ? ` ${percent(progress.computed_tokens / progress.prompt_tokens)},` : '…';
      this.status.textContent =
        tokens === 0 ? `Reading${read} ${elapsed}` : `Writing… ${count(tokens)} tokens, ${elapsed}`;
    }, 100);
    const began = performance.now();
    this.generation = await generate(body, signal, (generation) => {
      this.generation = generation;
      this.text.update(generation);
    });
    clearInterval(clock);
    this.status.classList.remove('working');
    this.status.textContent = ending(this.generation);
    this.problem.textContent = this.generation.error ?? '';
    show(this.problem, this.generation.error !== null);
    this.node.dataset.done = this.generation.error ? 'failed' : 'done';
    return this.generation;
  }
}

export class Compare {
  constructor(text, settings, model) {
    this.text = text;
    this.settings = settings;
    this.model = model;
    this.controller = null;
    this.question = byId('compare-question');
    byId('compare-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.run();
    });
    this.question.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.run();
    });
    byId('compare-stop').addEventListener('click', () => this.controller?.abort());
  }

  async run() {
    const asked = this.question.value.trim();
    if (!asked || this.controller) return;
    const place = byId('compare-answers');
    place.replaceChildren();
    show(byId('compare-table-place'), false);
    const names = [0, 1, 2].map((i) => byId(`pick-${i}`).value);
    const columns = names.map((name) => new Column(name, place));
    const content = this.text.value ? `${this.text.value}\n\n${asked}` : asked;
    const messages = [...this.settings.system(), { role: 'user', content }];
    this.controller = new AbortController();
    this.busy(true);
    for (const column of columns) {
      byId('compare-status').textContent = `Asking with ${column.name}.`;
      const fields = this.settings.request({ selection: column.name, temperature: 0 });
      if (fields.winnow.trace) fields.winnow.trace = FEW_PARTS;
      await column.run({ model: this.model(), messages, ...fields }, this.controller.signal);
      if (this.controller.signal.aborted) break;
    }
    const done = columns.filter(
      (column) => column.generation && !column.generation.error && !column.generation.stopped,
    );
    this.controller = null;
    this.busy(false);
    byId('compare-status').textContent =
      done.length === columns.length ? `All have answered.${cacheNote(done)}` : 'Not all have answered.';
    if (done.length > 0) this.summarise(done);
  }

  summarise(columns) {
    const reference = columns[0].generation;
    for (const column of columns) column.text.markDifferences(column.generation, reference);
    const figures = columns.map((column) => [
      ['Same tokens', sameness(reference, column.generation)],
      ['Time in all', seconds(column.generation.timing.ended)],
      ...figuresOf(column.generation),
    ]);
    const table = byId('compare-table');
    const corner = element('th', 'hidden-cell', element('span', 'hidden', 'Figure'));
    corner.scope = 'col';
    const head = element('tr', '', corner, ...columns.map((column) => heading(column.name, 'col')));
    const rows = figures[0].map(([name], i) =>
      element('tr', '', heading(name, 'row'), ...figures.map((each) => element('td', '', each[i][1]))),
    );
    table.replaceChildren(table.caption, element('thead', '', head), element('tbody', '', ...rows));
    byId('compare-table-place').querySelector('.legend')?.remove();
    byId('compare-table-place').append(massLegend());
    show(byId('compare-table-place'), true);
  }

  busy(on) {
    show(byId('compare-run'), !on);
    show(byId('compare-stop'), on);
  }
}

function heading(text, scope) {
  const cell = element('th', '', text);
  cell.scope = scope;
  return cell;
}
