// Numbers as people read them.

export const NOT_MEASURED = '–';

const grouped = new Intl.NumberFormat('en');

export const count = (n) => (n === null || n === undefined ? NOT_MEASURED : grouped.format(n));

export function seconds(ms) {
  if (ms === null || ms === undefined) return NOT_MEASURED;
  if (ms < 100) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

export function bytes(n) {
  if (n === null || n === undefined) return NOT_MEASURED;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    ++unit;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

// A share of the attention's mass: the digits that differ are the last ones.
export const mass = (m) => (m === null || m === undefined ? NOT_MEASURED : m >= 0.99995 ? '1' : m.toFixed(3));

export function percent(share) {
  if (share > 0 && share < 0.001) return '< 0.1 %';
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
}
