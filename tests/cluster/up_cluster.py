"""Clusters that `winnow up` runs, and what their users ask."""

import json
import signal
import subprocess
import tempfile


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Cluster:
    def __init__(self, winnow, *arguments):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([winnow, "up", *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True)

    def ready(self):
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.text()
        return dict(word.split("=") for word in line.split()[1:])

    def children(self):
        """Ids of its processes that run."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [int(process) for process in found.split()]

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.text()


def get(address, path, body=None):
    command = ["curl", "-fsS", "--noproxy", "*", "--retry", "60", "--retry-delay", "1", "--retry-all-errors",
               f"http://{address}{path}"]
    return json.loads(run(*command, *(["-d", json.dumps(body)] if body else [])))


def answers(address):
    answer = get(address, "/v1/completions", {"prompt": "The code of nerita is 271828.", "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] >= 1, answer


def status(address, path):
    command = ["curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", f"http://{address}{path}"]
    return subprocess.run(command, capture_output=True, text=True).stdout
