#!/usr/bin/env python3
"""How long an answer stands still when the rank that computes it is killed, and whether its bytes are the same.

Starts a cluster with two inference ranks, streams an answer undisturbed, then streams it again and kills (SIGKILL) the
inference rank that has it in the middle; as often as --runs says, each time with another prompt. Prints, for each run,
the longest pause between two tokens of the undisturbed and of the disturbed answer.

usage: failover.py WINNOW MODEL [--runs=N] [--prompt-characters=N] [--tokens=N] [--flags="FLAGS OF winnow up"]
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("winnow")
parser.add_argument("model")
parser.add_argument("--runs", type=int, default=10)
parser.add_argument("--prompt-characters", type=int, default=12000)
parser.add_argument("--tokens", type=int, default=400)
parser.add_argument("--flags", default="--budget=256")
options = parser.parse_args()
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def stream(address, prompt, at_token=None, action=None):
    """The answer's text, and the longest pause between two of its tokens in seconds."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": options.tokens, "ignore_eos": True, "temperature": 0, "stream": True}))
    text, pause, tokens, last = "", 0.0, 0, None
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        text += event["choices"][0]["text"]
        now = time.monotonic()
        pause, last, tokens = max(pause, now - (last or now)), now, tokens + 1
        if tokens == at_token:
            action()
    return text, pause


def running(address):
    metrics = direct.open(f"http://{address}/metrics", timeout=5).read().decode()
    return float(re.search(r"^winnow_num_requests_running\S* (\S+)", metrics, re.M).group(1))


def serving_ranks(address):
    metrics = direct.open(f"http://{address}/metrics", timeout=5).read().decode()
    return float(re.search(r'^winnow_router_ranks\{.*kind="inference".*\} (\S+)', metrics, re.M).group(1))


def process_behind(address):
    """The process that listens at an address of this machine."""
    port = f":{int(address.rsplit(':', 1)[1]):04X}"
    with open("/proc/net/tcp") as table:
        sockets = {f"socket:[{fields[9]}]" for fields in map(str.split, table) if fields[1].endswith(port) and fields[3] == "0A"}
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(entry.path) in sockets for entry in os.scandir(f"/proc/{process}/fd")):
                return int(process)
        except OSError:
            pass  # it has ended meanwhile, or a descriptor has been closed
    raise RuntimeError(f"nobody listens at {address}")


up = subprocess.Popen([options.winnow, "up", f"--model={options.model}", "--inference-ranks=2", "--http=127.0.0.1:0",
                       "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0", "--prefix-cache=false", "--log-level=error",
                       *options.flags.split()], stdout=subprocess.PIPE, text=True)
try:
    ready = up.stdout.readline()
    http_address = re.search(r"http=(\S+)", ready).group(1)
    ranks = re.search(r"metrics=(\S+)", ready).group(1).split(",")[1:3]  # where the two answer; the router's is the first
    with open(os.path.join(os.path.dirname(__file__), "../../../docs/operations.md")) as file:
        text = file.read()
    undisturbed_pauses, pauses = [], []
    for run in range(options.runs):
        prompt = text[1000 * run:][:options.prompt_characters]
        expected, undisturbed = stream(http_address, prompt)

        def kill_busy_rank():
            os.kill(process_behind(next(filter(running, ranks))), signal.SIGKILL)

        answer, pause = stream(http_address, prompt, options.tokens // 4, kill_busy_rank)
        print(f"run {run}: longest pause {undisturbed * 1e3:.1f} ms undisturbed, {pause * 1e3:.1f} ms with a kill, "
              f"{'the same bytes' if answer == expected else 'OTHER BYTES'}", flush=True)
        assert answer == expected
        undisturbed_pauses.append(undisturbed)
        pauses.append(pause)
        while serving_ranks(http_address) < 2:
            time.sleep(0.1)
        time.sleep(1)
    print(f"median {statistics.median(undisturbed_pauses) * 1e3:.1f} and {statistics.median(pauses) * 1e3:.1f} ms, "
          f"most {max(undisturbed_pauses) * 1e3:.1f} and {max(pauses) * 1e3:.1f} ms")
finally:
    up.terminate()
    up.wait()
