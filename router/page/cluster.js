// Ranks, their load and the links between them, twice a second while the view is shown.
import { metrics, ranks } from '/page/api.js';
import { byId, element, show } from '/page/dom.js';
import { total } from '/page/exposition.js';
import { fillFigures } from '/page/figures.js';
import { bytes, count, NOT_MEASURED } from '/page/format.js';
import { RankHistory } from '/page/rank_history.js';

const REFRESH_MS = 500; // a rank that is started again at once is away for about a second
const MOST_EVENTS = 200;
const MARKED_MS = 15_000; // how long a rank that came back is marked

export class Cluster {
  constructor() {
    this.history = new RankHistory();
    this.round = 0; // of the refreshes since the view was last shown or left; others end
    this.before = null; // the last metrics, for rates
  }

  shown(on) {
    const round = ++this.round;
    if (on) this.refresh(round);
  }

  async refresh(round) {
    const [list, figures] = await Promise.allSettled([ranks(), metrics()]);
    if (round !== this.round) return;
    const problem = byId('cluster-problem');
    show(problem, list.status === 'rejected');
    problem.textContent = list.status === 'rejected' ? list.reason.message : '';
    if (list.status === 'fulfilled') this.update(list.value.ranks);
    this.showRouter(list.status === 'fulfilled');
    if (figures.status === 'fulfilled') this.showFigures(figures.value);
    setTimeout(() => round === this.round && this.refresh(round), REFRESH_MS);
  }

  update(list) {
    for (const event of this.history.take(list)) {
      const time = element('time', '', new Date(event.at).toLocaleTimeString());
      byId('events').prepend(element('li', '', time, ` ${event.text}`));
      if (byId('events').children.length > MOST_EVENTS) byId('events').lastChild.remove();
    }
    const inference = this.history.of('inference-rank');
    const caches = this.history.of('cache-rank');
    byId('inference-ranks').replaceChildren(...inference.map(card));
    byId('cache-ranks').replaceChildren(...caches.map(card));
    byId('links').replaceChildren(...linkRows(inference, caches));
  }

  showRouter(answers) {
    const pill = element('span', answers ? 'pill serving' : 'pill lost', answers ? 'serving' : 'not answering');
    byId('routers').replaceChildren(
      element('li', answers ? 'rank' : 'rank gone', element('div', 'row', element('strong', '', location.host), pill)),
    );
  }

  showFigures(text) {
    const tokens = total(text, 'winnow_router_tokens_total');
    const now = performance.now();
    const rate =
      this.before && tokens !== null
        ? Math.max(0, tokens - this.before.tokens) / ((now - this.before.at) / 1000)
        : null;
    this.before = { tokens, at: now };
    fillFigures(byId('cluster-figures'), [
      ['Requests running', count(total(text, 'winnow_num_requests_running'))],
      ['Requests waiting', count(total(text, 'winnow_num_requests_waiting'))],
      ['Tokens a second', rate === null ? NOT_MEASURED : rate.toFixed(rate < 10 ? 1 : 0)],
      ['Tokens in all', count(tokens)],
      ['Taken over by another rank', count(total(text, 'winnow_failovers_total'))],
    ]);
  }
}

function stateOf({ rank, lostAt, returnedAt }) {
  const away = lostAt === null ? 0 : Math.round((Date.now() - lostAt) / 1000);
  if (lostAt !== null) return ['lost', away === 0 ? 'lost just now' : `lost ${away} s ago`];
  if (returnedAt !== null && Date.now() - returnedAt < MARKED_MS) return ['back', `${rank.state}, back`];
  return [rank.state.replaceAll(' ', '-'), rank.state];
}

function card(entry) {
  const { rank, lostAt } = entry;
  const [kind, words] = stateOf(entry);
  const node = element(
    'li',
    `rank${lostAt === null ? '' : ' gone'}`,
    element('div', 'row', element('strong', '', rank.rank), element('span', `pill ${kind}`, words)),
  );
  node.dataset.rank = rank.rank;
  node.dataset.state = kind;
  node.append(element('p', 'note', rank.address));
  if (rank.reason) node.append(element('p', 'problem', rank.reason));
  if (lostAt !== null || rank.total_bytes === undefined) return node;
  const used = rank.total_bytes - rank.free_bytes;
  const meter = element('meter', '');
  Object.assign(meter, { min: 0, max: Math.max(1, rank.total_bytes), value: used });
  meter.setAttribute('aria-label', `Memory of ${rank.rank}`);
  node.append(
    meter,
    element('p', 'note', `${bytes(used)} of ${bytes(rank.total_bytes)}`),
    element('p', 'note', `${count(rank.running_sequences)} running, ${count(rank.waiting_sequences)} waiting`),
  );
  return node;
}

function cell(tag, text, scope) {
  const made = element(tag, '', text);
  if (scope) made.scope = scope;
  return made;
}

function linkRows(inference, caches) {
  const head = element(
    'tr',
    '',
    cell('th', 'from \\ to', 'col'),
    ...caches.map(({ rank }) => cell('th', rank.rank, 'col')),
  );
  const rows = inference.map((from) =>
    element(
      'tr',
      '',
      cell('th', from.rank.rank, 'row'),
      ...caches.map((to) => {
        if (from.lostAt !== null || to.lostAt !== null) return cell('td', 'down');
        return cell('td', (from.rank.does_not_reach ?? []).includes(to.rank.rank) ? 'does not reach' : 'reaches');
      }),
    ),
  );
  return [element('thead', '', head), element('tbody', '', ...rows)];
}
