// Starts `winnow up` with the demo model, runs the tests of this folder against it, and stops it:
//   main.mjs WINNOW MODEL TEMPLATE
// The model's folder gets a chat template that shows tools, so that calls can be asked for.
import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { Cluster } from './cluster.mjs';

const [binary, model, template] = process.argv.slice(2);
const folder = resolve('model');
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder);
for (const name of readdirSync(model)) symlinkSync(join(resolve(model), name), join(folder, name));
copyFileSync(template, join(folder, 'chat_template.jinja'));

const cluster = await Cluster.start(binary, folder, [
  '--budget=256',
  '--max-context=4096',
  '--model-id=demo,alias',
  '--tool-format=hermes',
]);
let status = 1;
try {
  const only = process.env.ONLY ?? ''; // a part of a file's name
  const files = readdirSync('.').filter((name) => name.endsWith('.test.mjs') && name.includes(only));
  const env = { ...process.env, WINNOW_URL: cluster.url, WINNOW_BASE_URL: `${cluster.url}/v1`, OPENAI_API_KEY: 'any' };
  // Not synchronously: the cluster's log has to be read meanwhile.
  const run = (command, args) =>
    new Promise((resolve) => spawn(command, args, { stdio: 'inherit', env }).on('exit', (code) => resolve(code ?? 1)));
  const curl = await run('./curl.sh', [cluster.url]);
  status = curl || (await run(process.execPath, ['--test', '--test-concurrency=1', ...files]));
} finally {
  await cluster.stop();
}
if (status !== 0) console.error(cluster.log.slice(-8000));
process.exit(status ?? 1);
