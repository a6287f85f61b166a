// Ranks as they come and go. The router's list has those that are there; who is missing from it was there before.

export class RankHistory {
  constructor() {
    this.known = new Map(); // by role and name: {rank, lostAt, returnedAt}
  }

  // Takes the router's list, and says what has changed since the last one: [{at, text}].
  take(list, now = Date.now()) {
    const isFirst = this.known.size === 0;
    const happened = [];
    const present = new Set();
    for (const rank of list) {
      const name = `${rank.role}/${rank.rank}`;
      present.add(name);
      const before = this.known.get(name);
      if (!before) {
        if (!isFirst) happened.push(`${rank.rank} joined`);
        this.known.set(name, { rank, lostAt: null, returnedAt: null });
        continue;
      }
      const isNew = before.rank.incarnation !== rank.incarnation;
      if (before.lostAt !== null) {
        const gone = ((now - before.lostAt) / 1000).toFixed(1);
        happened.push(`${rank.rank} is back after ${gone} s${isNew ? ', as a new process' : ''}`);
        before.returnedAt = now;
        before.lostAt = null;
      } else if (isNew) {
        happened.push(`${rank.rank} was replaced by a new process`);
        before.returnedAt = now;
      } else if (before.rank.state !== rank.state) {
        happened.push(`${rank.rank} is ${rank.state}`);
      }
      before.rank = rank;
    }
    for (const [name, entry] of this.known) {
      if (present.has(name) || entry.lostAt !== null) continue;
      entry.lostAt = now;
      happened.push(`${entry.rank.rank} is lost`);
    }
    return happened.map((text) => ({ at: now, text }));
  }

  of(role) {
    return [...this.known.values()].filter((entry) => entry.rank.role === role);
  }
}
