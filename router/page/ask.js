// The conversation: questions, streamed answers, and what can be seen of how each was made.
import { tokenize } from '/page/api.js';
import { AnswerText, massLegend } from '/page/answer_text.js';
import { byId, element, show } from '/page/dom.js';
import { ending } from '/page/ending.js';
import { figuresOf, fillFigures } from '/page/figures.js';
import { count, seconds } from '/page/format.js';
import { generate } from '/page/generation.js';
import { Context } from '/page/passages.js';
import { StepView } from '/page/step_view.js';

const CLOCK_MS = 100;

// One answer of the conversation, as it is made.
class AnswerCard {
  constructor() {
    this.text = new AnswerText((token) => this.step.pick(token));
    this.step = new StepView(this.text);
    this.status = element('p', 'note working');
    this.reading = element('progress', 'reading');
    this.reading.setAttribute('aria-label', 'How much of the prompt is read');
    this.reading.hidden = true;
    this.problem = element('p', 'problem');
    this.problem.setAttribute('role', 'alert');
    this.problem.hidden = true;
    this.figures = element('dl', 'figures');
    this.how = element(
      'details',
      'how',
      element('summary', '', 'How it was made'),
      massLegend(),
      this.step.node,
      this.figures,
    );
    this.how.open = true;
    this.how.hidden = true;
    this.node = element(
      'article',
      'answer',
      element('h2', 'who', 'Answer'),
      this.status,
      this.reading,
      this.text.node,
      this.problem,
      this.how,
    );
    this.node.setAttribute('aria-busy', 'true');
    this.began = performance.now();
    this.promptTokens = null;
    this.clock = setInterval(() => this.tick(), CLOCK_MS);
    this.tick();
  }

  // Until the server has begun with the prompt, how long it has been is all that there is to tell.
  tick() {
    if (this.generation?.tokenCount > 0) return;
    let size = this.promptTokens === null ? 'the prompt' : `${count(this.promptTokens)} tokens`;
    const progress = this.generation?.promptProgress;
    if (progress) {
      this.reading.max = progress.prompt_tokens;
      this.reading.value = progress.computed_tokens;
      show(this.reading, true);
      const cached = progress.cached_tokens > 0 ? ` (${count(progress.cached_tokens)} from the cache)` : '';
      size = `${count(progress.computed_tokens)}${cached} of ${count(progress.prompt_tokens)} tokens`;
    }
    this.status.textContent = `Reading ${size}… ${((performance.now() - this.began) / 1000).toFixed(1)} s`;
  }

  update(generation) {
    this.generation = generation;
    this.text.update(generation);
    this.step.update(generation);
    if (generation.tokenCount === 0) return this.tick();
    show(this.reading, false);
    this.status.textContent = `Writing… ${count(generation.tokenCount)} tokens, ${seconds(generation.timing.elapsed())}`;
    show(this.how, true);
    fillFigures(this.figures, figuresOf(generation));
  }

  finish(generation, messages) {
    clearInterval(this.clock);
    this.update(generation);
    show(this.reading, false);
    this.status.classList.remove('working');
    this.node.setAttribute('aria-busy', 'false');
    this.status.textContent = ending(generation);
    this.step.finish(new Context(messages, generation));
    this.problem.textContent = generation.error ?? '';
    show(this.problem, generation.error !== null);
    this.node.dataset.done = generation.error ? 'failed' : 'done';
  }
}

export class Ask {
  constructor(text, settings, model) {
    this.text = text;
    this.settings = settings;
    this.model = model;
    this.messages = [];
    this.controller = null;
    this.question = byId('question');
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    this.question.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId('stop').addEventListener('click', () => this.controller?.abort());
    byId('clear').addEventListener('click', () => this.clear());
  }

  clear() {
    this.controller?.abort();
    this.messages = [];
    byId('conversation').replaceChildren(byId('welcome') ?? this.welcome);
    byId('clear').disabled = true;
    this.question.focus();
  }

  async send() {
    const asked = this.question.value.trim();
    if (!asked || this.controller) return;
    const isFirst = this.messages.length === 0;
    const content = isFirst && this.text.value ? `${this.text.value}\n\n${asked}` : asked;
    const said = { role: 'user', content };
    const messages = [...this.settings.system(), ...this.messages, said];
    this.question.value = '';
    const card = this.begin(asked, isFirst && this.text.value ? this.text.value.length : 0);
    tokenize(messages)
      .then((tokens) => (card.promptTokens = tokens.length))
      .catch(() => {});

    this.controller = new AbortController();
    this.busy(true);
    const body = { model: this.model(), messages, ...this.settings.request() };
    const generation = await generate(body, this.controller.signal, (g) => card.update(g));
    this.controller = null;
    this.busy(false);
    card.finish(generation, messages);
    if (generation.error && generation.tokenCount === 0) {
      this.question.value = asked; // to be tried again
    } else {
      this.messages.push(said, { role: 'assistant', content: generation.text });
    }
  }

  begin(asked, characters) {
    const conversation = byId('conversation');
    this.welcome ??= byId('welcome');
    this.welcome.remove();
    for (const details of conversation.querySelectorAll('details.how')) details.open = false;
    const note = characters > 0 ? element('p', 'note', `with a text of ${count(characters)} characters`) : null;
    const card = new AnswerCard();
    conversation.append(
      element('article', 'asked', element('h2', 'who', 'You'), element('p', '', asked), note),
      card.node,
    );
    card.node.scrollIntoView({ block: 'nearest' });
    byId('clear').disabled = false;
    return card;
  }

  busy(on) {
    show(byId('send'), !on);
    show(byId('stop'), on);
    if (!on) this.question.focus();
  }
}
