// A text of some 4,000 tokens that hides codes among sentences, the same each time.

let state = 20240521;
function below(n) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 2 ** 32) * n);
}
const pick = (list) => list[below(list.length)];

const subjects = [
  'The build system',
  'The scheduler',
  'A background worker',
  'The parser',
  'The network layer',
  'A plugin',
  'The test runner',
  'The log writer',
  'The file watcher',
  'The cache',
  'A client library',
  'The type checker',
];
const verbs = ['reads', 'writes', 'checks', 'updates', 'collects', 'validates', 'reports', 'compares', 'restores'];
const objects = [
  'the list of open files',
  'every changed source file',
  'the default options',
  'a table of symbols',
  'all pending jobs',
  'the state of each thread',
  'temporary buffers',
  'old log entries',
  'the result of the query',
];
const endings = [
  'before the first test is run',
  'when the program starts',
  'after each successful build',
  'if the option is set',
  'without blocking the main thread',
  'and returns a status code',
  'until the queue is empty',
];
const facts = [
  ['nerita', '271828'],
  ['bolumen', '314159'],
  ['katiro', '161803'],
  ['vesanit', '141421'],
  ['dulopa', '577215'],
  ['ponikar', '693147'],
];

export function longText(characters = 16_500) {
  const lines = [];
  let length = 0;
  while (length < characters) {
    const line = Array.from(
      { length: 3 },
      () => `${pick(subjects)} ${pick(verbs)} ${pick(objects)} ${pick(endings)}.`,
    ).join(' ');
    lines.push(line);
    length += line.length + 1;
  }
  facts.forEach(([name, code], i) =>
    lines.splice(Math.floor(((i + 0.6) / facts.length) * lines.length), 0, `The code of ${name} is ${code}.`),
  );
  return lines.join('\n');
}

export const question = 'What is the code of katiro?';
export const answer = 'The code of katiro is 161803.';
