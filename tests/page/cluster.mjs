// `winnow up` as a user starts it, with ports of its own.
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const START_MS = 60_000;

export class Cluster {
  static async start(binary, model, options = []) {
    const flags = ['--http=127.0.0.1:0', '--grpc=127.0.0.1:0', '--metrics=127.0.0.1:0'];
    const cluster = new Cluster();
    cluster.log = '';
    cluster.process = spawn(binary, ['up', `--model=${model}`, ...flags, ...options], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    cluster.process.stderr.on('data', (data) => (cluster.log += data));
    const lines = createInterface({ input: cluster.process.stdout });
    const limit = setTimeout(() => cluster.process.kill('SIGKILL'), START_MS);
    for await (const line of lines) {
      const ready = /^ready http=(\S+)/.exec(line);
      if (!ready) continue;
      clearTimeout(limit);
      cluster.url = `http://${ready[1]}`;
      return cluster;
    }
    throw new Error(`the cluster did not start:\n${cluster.log}`);
  }

  // Processes of a role, in the order of their start; of two that began in the same moment by their numbers.
  processes(role) {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map((pid) => {
        try {
          const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
          const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
          return { pid: Number(pid), parent: Number(fields[1]), started: Number(fields[19]), role: command[1] };
        } catch {
          return {}; // it has ended meanwhile
        }
      })
      .filter((child) => child.parent === this.process.pid && child.role === role)
      .sort((a, b) => a.started - b.started || a.pid - b.pid)
      .map(({ pid }) => pid);
  }

  // Ends a process of a role as a crash would, and each that takes its place until the returned function is
  // called.
  keepDown(role) {
    const [first, ...others] = this.processes(role);
    process.kill(first, 'SIGKILL');
    const again = setInterval(() => {
      for (const pid of this.processes(role)) if (!others.includes(pid) && pid !== first) process.kill(pid, 'SIGKILL');
    }, 50);
    return () => clearInterval(again);
  }

  async stop() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.kill('SIGTERM');
    const limit = setTimeout(() => this.process.kill('SIGKILL'), 15_000);
    await ended;
    clearTimeout(limit);
  }
}
