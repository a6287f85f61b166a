// Puts the views together, and keeps an eye on whether the server would serve.
import { models, ready } from '/page/api.js';
import { Ask } from '/page/ask.js';
import { Cluster } from '/page/cluster.js';
import { Compare } from '/page/compare.js';
import { byId } from '/page/dom.js';
import { sampleText } from '/page/sample.js';
import { Settings } from '/page/settings.js';
import { setUpTabs } from '/page/tabs.js';
import { TextSource } from '/page/text_source.js';

const READY_MS = 2000;

const text = new TextSource();
const settings = new Settings();
const cluster = new Cluster();
let model = '';
let loaded = false;

const ask = new Ask(text, settings, () => model || undefined);
new Compare(text, settings, () => model || undefined);

byId('try-sample').addEventListener('click', () => {
  const sample = sampleText();
  text.value = sample.text;
  byId('question').value = byId('compare-question').value = sample.question;
  ask.question.focus();
});

async function load() {
  const served = await models();
  model = served[0].id;
  byId('model-name').textContent = `${model}, up to ${served[0].max_model_len.toLocaleString('en')} tokens`;
  await settings.load([0, 1, 2].map((i) => byId(`pick-${i}`)));
  loaded = true;
}

async function watch() {
  let state = 'on';
  let words = 'ready';
  try {
    await ready();
    if (!loaded) await load();
  } catch (error) {
    state = 'off';
    words = error.message;
  }
  byId('ready-dot').className = `dot ${state}`;
  if (byId('ready-text').textContent !== words) byId('ready-text').textContent = words;
  setTimeout(watch, READY_MS);
}

setUpTabs(byId('tabs'), (view) => cluster.shown(view === 'cluster'));
watch();
