// Prometheus' text format, as far as a figure here and there needs it.

// Sum of a family's samples, or null when it has none.
export function total(text, name) {
  let sum = null;
  for (const line of text.split('\n')) {
    if (!line.startsWith(name)) continue;
    const next = line[name.length];
    if (next !== ' ' && next !== '{') continue;
    sum = (sum ?? 0) + Number(line.slice(line.lastIndexOf(' ') + 1));
  }
  return sum;
}
