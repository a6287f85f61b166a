// When the tokens of an answer came, as this page saw it.

export function quantile(values, fraction) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(fraction * sorted.length))];
}

export class Timing {
  constructor() {
    this.began = performance.now();
    this.first = null; // ms from the request to the first token
    this.ended = null; // ms from the request to the end
    this.gaps = []; // ms between tokens
  }

  // Tokens that came together: the first of them took the time, the others none.
  tokens(n) {
    const now = performance.now();
    if (this.first === null) this.first = now - this.began;
    else this.gaps.push(now - this.last);
    for (let i = 1; i < n; ++i) this.gaps.push(0);
    this.last = now;
  }

  end() {
    this.ended = performance.now() - this.began;
  }

  elapsed() {
    return this.ended ?? performance.now() - this.began;
  }

  mean() {
    return this.gaps.length > 0 ? this.gaps.reduce((sum, gap) => sum + gap, 0) / this.gaps.length : null;
  }

  median() {
    return quantile(this.gaps, 0.5);
  }

  p99() {
    return quantile(this.gaps, 0.99);
  }
}
