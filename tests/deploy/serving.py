"""What every way to deploy must do, seen by a client: answer over HTTP and gRPC, name its ranks, leave nothing behind."""

import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from waiting import wait_until

SKIPPED = 77  # what ctest takes for "skipped"
PROMPT = "The code of nerita is 271828."
INSIDE = ["ip", "netns", "exec"]


def step(text):
    print(f"-- {text}", flush=True)


def skip(reason):
    print(f"skipped: {reason}")
    raise SystemExit(SKIPPED)


def run(*command, **options):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          **{"timeout": 300, **options})
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class Client:
    """A client of one cluster. `inside` is a command that runs others where the cluster is reached, such as a namespace's.
    With `authority`, a file of certificates, it speaks TLS; with `key` it shows that API key."""

    def __init__(self, winnow, http, grpc, inside=(), authority=None, key=None):
        self.winnow, self.http, self.grpc, self.inside = winnow, http, grpc, list(inside)
        self.scheme = "https" if authority else "http"
        self.authority, self.key = authority, key

    def curl(self, path, *options, address=None):
        """A command line."""
        return [*self.inside, "curl", "-sS", "--noproxy", "*", *(["--cacert", self.authority] if self.authority else []),
                *(["-H", f"Authorization: Bearer {self.key}"] if self.key else []),
                f"{self.scheme}://{address or self.http}{path}", *options]

    def get(self, path, body=None, address=None):
        """Status and body; (0, reason) where nobody answers."""
        command = self.curl(path, "--max-time", "60", "-w", "\n%{http_code}", *(["-d", json.dumps(body)] if body else []),
                            address=address)
        done = subprocess.run(command, capture_output=True, text=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status or 0), text or done.stderr

    def is_ready(self):
        return self.get("/ready")[0] == 200

    def wait_ready(self, limit_s=60, otherwise=lambda: ""):
        wait_until("the router is ready", self.is_ready, limit_s, lambda: f"{self.get('/ready')} {otherwise()}")

    def ranks(self):
        """Rank by name; None while nobody answers."""
        status, text = self.get("/ranks")
        return {rank["rank"]: rank for rank in json.loads(text)["ranks"]} if status == 200 else None

    def answers(self):
        """Over HTTP and over gRPC. Requests may be refused while a rank that was lost is replaced: they are tried again."""
        def completes():
            status, text = self.get("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True})
            return status == 200 and json.loads(text)["usage"]["completion_tokens"] == 4

        def generates():
            command = [*self.inside, self.winnow, "generate", f"--server={self.grpc}", "--max-tokens=4",
                       *([f"--tls-ca={self.authority}"] if self.authority else []), PROMPT]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, "no_proxy": "*", "no_grpc_proxy": "*",
                                       **({"WINNOW_API_KEY": self.key} if self.key else {})})
            return done.returncode == 0 and done.stdout.strip()

        wait_until("an answer over HTTP", completes)
        wait_until("an answer over gRPC", generates)

    def begins(self, tokens):
        """A long answer as a stream of its own; it has begun when this returns."""
        body = {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        stream = subprocess.Popen(self.curl("/v1/completions", "-N", "--max-time", "120", "-d", json.dumps(body)),
                                  stdout=subprocess.PIPE, text=True)
        assert stream.stdout.readline().startswith("data: {"), "the stream has not begun"
        return stream


def finishes(stream):
    """The rest of a stream that Client.begins returned has come, to its very end."""
    rest = stream.stdout.read()
    assert stream.wait() == 0, rest[-400:]
    assert rest.rstrip().endswith("data: [DONE]"), rest[-400:]


def processes_of(winnow):
    """Ids of the processes that run this program."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samefile(folder / "exe", winnow):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def command_line(process):
    """Its words; none when it has ended."""
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except OSError:
        return []
