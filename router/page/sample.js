// A text that hides codes among sentences about software, of the kind that `winnow demo` writes: the demo model finds
// them.

const subjects = [
  'The build system',
  'The scheduler',
  'A background worker',
  'The command line tool',
  'The parser',
  'The network layer',
  'The configuration',
  'A plugin',
  'The test runner',
  'The log writer',
  'The file watcher',
  'The package manager',
  'The cache',
  'A client library',
  'The memory allocator',
  'The type checker',
];
const verbs = [
  'reads',
  'writes',
  'checks',
  'updates',
  'collects',
  'validates',
  'releases',
  'reports',
  'compares',
  'schedules',
  'compresses',
  'restores',
  'creates',
  'removes',
];
const objects = [
  'the list of open files',
  'every changed source file',
  'the default options',
  'a table of symbols',
  'the headers of the request',
  'all pending jobs',
  'the state of each thread',
  'the output directory',
  'the version of the module',
  'temporary buffers',
  'the arguments of the call',
  'old log entries',
];
const endings = [
  'before the first test is run',
  'when the program starts',
  'after each successful build',
  'if the option is set',
  'without blocking the main thread',
  'in the order of their creation',
  'and returns a status code',
  'at the end of every iteration',
  'because the format may change',
  'until the queue is empty',
  'and prints a short message',
];

const pick = (list) => list[Math.floor(Math.random() * list.length)];

function name() {
  let text = '';
  for (let i = 0; i < 3; ++i) text += pick([...'bcdfghjklmnprstvz']) + pick([...'aeiou']);
  return text;
}

const digits = () => Array.from({ length: 6 }, () => Math.floor(Math.random() * 10)).join('');
const sentence = () => `${pick(subjects)} ${pick(verbs)} ${pick(objects)} ${pick(endings)}.`;

// {text, question}
export function sampleText(characters = 16_500, facts = 16) {
  const names = [...new Set(Array.from({ length: facts }, name))];
  const lines = [];
  for (let left = characters - names.length * 30; left > 0; left -= lines.at(-1).length + 1) {
    lines.push(Array.from({ length: 3 }, sentence).join(' '));
  }
  for (const each of names) {
    lines.splice(Math.floor(Math.random() * (lines.length + 1)), 0, `The code of ${each} is ${digits()}.`);
  }
  return { text: lines.join('\n'), question: `What is the code of ${pick(names)}?` };
}
