// The page in a browser, against a cluster that serves the demo model: what a user sees of a long text, of several
// selections, and of a rank that is killed.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import puppeteer from 'puppeteer-core';
import { Cluster } from './cluster.mjs';
import { answer, longText, question } from './text.mjs';

const ANSWER_MS = 60_000;
const images = process.env.WINNOW_PAGE_IMAGES ?? 'images';
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const text = longText();

let cluster, browser, page;
const problems = []; // what the browser complains of
const elsewhere = []; // requests to other places

before(async () => {
  mkdirSync(images, { recursive: true });
  cluster = await Cluster.start(process.env.WINNOW_BINARY, process.env.WINNOW_MODEL, [
    '--budget=256',
    '--inference-ranks=2',
  ]);
  browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--force-color-profile=srgb', '--hide-scrollbars'],
  });
  page = await browser.newPage();
  page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('request', (request) => request.url().startsWith(cluster.url) || elsewhere.push(request.url()));
  await page.setViewport({ width: 1280, height: 900 });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: 'light' }]);
  await page.goto(`${cluster.url}/`);
  await page.waitForSelector('#ready-dot.on', { timeout: 10_000 });
});

after(async () => {
  await browser?.close();
  await cluster?.stop();
});

const textOf = (selector) => page.$eval(selector, (node) => node.textContent);

async function picture(name, options = {}) {
  await page.screenshot({ path: `${images}/page-${name}.png`, ...options });
}

async function colours(scheme) {
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
}

// In both colour schemes: what looks right in one may not be readable in the other.
async function assertAccessible(what) {
  for (const scheme of ['light', 'dark']) {
    await colours(scheme);
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(
      violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`),
      [],
      `${what}, ${scheme}`,
    );
  }
  await colours('light');
}

async function show(view) {
  await page.click(`#tab-${view}`);
  await page.waitForSelector(`#view-${view}:not([hidden])`);
}

async function paste(selector, value) {
  await page.$eval(
    selector,
    (area, pasted) => {
      area.value = pasted;
      area.dispatchEvent(new Event('input', { bubbles: true }));
    },
    value,
  );
}

// The same request, straight to the API.
async function askApi(selection) {
  const response = await fetch(`${cluster.url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({
      messages: [{ role: 'user', content: `${text.trim()}\n\n${question}` }],
      temperature: 0,
      max_tokens: 256,
      return_token_ids: true,
      winnow: selection ? { selection } : {},
    }),
  });
  assert.equal(response.status, 200);
  return response.json();
}

test('tells what it serves, and is accessible before anything was asked', async () => {
  assert.match(await textOf('#model-name'), /^demo, up to 32,768 tokens$/);
  await assertAccessible('empty');
});

test('answers a question about a pasted text as the API does', async () => {
  await paste('#text', text);
  await page.waitForFunction(() => /tokens/.test(document.querySelector('#text-size').textContent), {
    timeout: 10_000,
  });
  const tokens = Number(/([\d,]+) tokens/.exec(await textOf('#text-size'))[1].replace(',', ''));
  assert.ok(tokens > 3500 && tokens < 4500, `${tokens} tokens`);
  await page.type('#question', question);
  await page.keyboard.press('Enter');
  await page.waitForSelector('.answer[data-done=done]', { timeout: ANSWER_MS });
  const shown = await textOf('.answer .answer-text');
  assert.equal(shown, (await askApi()).choices[0].message.content);
  assert.equal(shown, answer);
});

test('shows how the answer was made', async () => {
  const figures = Object.fromEntries(
    await page.$$eval('.answer .figures div', (pairs) =>
      pairs.map((pair) => [pair.querySelector('dt').textContent, pair.querySelector('dd').textContent]),
    ),
  );
  assert.match(figures['Time to first token'], /\d (ms|s)$/);
  assert.match(figures['Between tokens, median'], /\d (ms|s)$/);
  assert.match(figures['Captured mass, mean'], /^(≥ )?(0\.\d+|1)$/);
  assert.match(figures['Rows streamed'], /^[\d,]+$/);
  assert.match(figures['Bytes streamed'], /B$/);
  assert.ok((await page.$$('.answer .token[class*=mass-]')).length > 5, 'tokens have the colour of their mass');
  // The strip has something in each of its lanes, and what the fact's token looked at is told in words.
  const painted = await page.$eval('.answer canvas.strip', (canvas) => {
    const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let i = 0; i < data.length; i += 4) colours.add(data.slice(i, i + 3).join());
    return { colours: colours.size, width, height };
  });
  assert.ok(painted.colours >= 4 && painted.width > 300, JSON.stringify(painted));
  // Among the steps that wrote the code is one that stands out in the sentence that has it.
  let passages = '';
  for (let token = 9; token <= 14 && !passages.includes('katiro'); ++token) {
    await page.$eval(
      '.answer .slider',
      (slider, value) => {
        slider.value = value;
        slider.dispatchEvent(new Event('input'));
      },
      token,
    );
    const said = await textOf('.answer .step-text');
    assert.match(said, /^Token \d+ “.*”: Attended to .* % of the rows, .* % resident, [\d,]+ moved/);
    await page.waitForFunction(
      (before) => document.querySelector('.answer .passages').textContent !== before,
      { timeout: 10_000 },
      passages,
    );
    passages = await textOf('.answer .passages');
  }
  assert.match(passages, /katiro/);
  await assertAccessible('answered');
  await page.setViewport({ width: 1280, height: 1120 });
  await page.evaluate(() => window.scrollTo(0, 0));
  await picture('ask');
  await colours('dark');
  await picture('ask-dark');
  await colours('light');
  await page.setViewport({ width: 400, height: 860 });
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `${overflow} pixels beyond a narrow screen`);
  await picture('narrow');
  await page.setViewport({ width: 1280, height: 900 });
});

test('stops an answer when told to', async () => {
  await page.click('#clear');
  await paste('#text', text.split('\n').reverse().join('\n')); // not seen yet, so that reading it takes a while
  await page.type('#question', question);
  await page.click('#send');
  await page.waitForSelector('#stop:not([hidden])');
  assert.match(await textOf('.answer .note'), /^Reading /);
  await page.waitForSelector('.answer progress:not([hidden])', { timeout: ANSWER_MS });
  const { value, max } = await page.$eval('.answer progress', (bar) => ({ value: bar.value, max: bar.max }));
  assert.ok(value <= max && max > 3500 && max < 4500, `${value} of ${max} tokens`);
  await page.waitForFunction(() => /Reading [\d,]+ .*of [\d,]+ tokens/.test(document.querySelector('.answer .note').textContent));
  await page.click('#stop');
  await page.waitForSelector('.answer[data-done=done]', { timeout: 10_000 });
  assert.match(await textOf('.answer .note'), /^Stopped after \d+ tokens/);
  await page.waitForSelector('#send:not([hidden])');
  await paste('#text', text);
});

test('says in words what the server refuses', async () => {
  await page.click('#clear');
  await page.$eval('#settings [name=max_tokens]', (input) => (input.value = '99999999'));
  await page.type('#question', question);
  await page.click('#send');
  await page.waitForSelector('.answer[data-done=failed]', { timeout: ANSWER_MS });
  assert.match(await textOf('.answer .problem'), /maximum context length is 32768/);
  await page.$eval('#settings [name=max_tokens]', (input) => (input.value = '256'));
  problems.length = 0; // the browser logs the status 400, which was asked for
});

test('compares selections with each other', async () => {
  await show('compare');
  await page.type('#compare-question', question);
  assert.deepEqual(await page.$$eval('.picks select', (selects) => selects.map((select) => select.value)), [
    'dense',
    'winnow',
    'async-token',
  ]);
  await page.click('#compare-run');
  await page.waitForSelector('#compare-table-place:not([hidden])', { timeout: 2 * ANSWER_MS });
  for (const selection of ['dense', 'winnow', 'async-token']) {
    const shown = await textOf(`[data-selection=${selection}] .answer-text`);
    assert.equal(shown, (await askApi(selection)).choices[0].message.content, selection);
  }
  const rows = Object.fromEntries(
    await page.$$eval('#compare-table tbody tr', (lines) =>
      lines.map((line) => [
        line.querySelector('th').textContent,
        [...line.querySelectorAll('td')].map((cell) => cell.textContent),
      ]),
    ),
  );
  assert.equal(rows['Same tokens'][0], 'reference');
  assert.match(rows['Same tokens'][1], /^all \d+ the same$/);
  assert.equal(rows['Captured mass, mean'][0], '1');
  const masses = rows['Captured mass, mean'].map((cell) => Number(cell.replace('≥ ', '')));
  assert.ok(masses[1] < 1 && masses[2] < 1, String(masses));
  await assertAccessible('compared');
  await page.setViewport({ width: 1280, height: 1120 });
  await page.evaluate(() => window.scrollTo(0, 0));
  await picture('compare');
});

test('shows that a rank was killed, and that it is back', async () => {
  await show('cluster');
  await page.setViewport({ width: 1280, height: 780 });
  const state = (rank) => `[data-rank=${rank}]`;
  await page.waitForSelector(`${state('inference-0')}[data-state=serving]`, { timeout: 5000 });
  await page.waitForSelector(`${state('cache-0')}[data-state=serving]`, { timeout: 5000 });
  const release = cluster.keepDown('inference-rank');
  const shown = page.waitForSelector('[data-rank^=inference-][data-state=lost]', { timeout: 15_000 });
  const lost = await shown.finally(release).then((card) => card.evaluate((node) => node.dataset.rank));
  await picture('cluster');
  await assertAccessible('a rank is lost');
  await page.waitForSelector(`${state(lost)}[data-state=back]`, { timeout: 30_000 });
  const events = await textOf('#events');
  assert.match(events, new RegExp(`${lost} is back after \\d+\\.\\d s, as a new process`));
  assert.match(events, new RegExp(`${lost} is lost`));
  await page.waitForFunction(() => document.querySelector('#links').textContent.includes('reaches'));
});

test('is driven by the keyboard', async () => {
  await page.focus('#tab-cluster');
  await page.keyboard.press('Home');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'tab-ask');
  assert.equal(await page.$eval('#view-ask', (view) => view.hidden), false);
  await page.keyboard.press('ArrowRight');
  assert.equal(await page.$eval('#view-compare', (view) => view.hidden), false);
});

test('needs nothing from elsewhere, and the browser has nothing to complain of', () => {
  assert.deepEqual(elsewhere, []);
  assert.deepEqual(problems, []);
});
