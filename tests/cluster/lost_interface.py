#!/usr/bin/env python3
"""A network interface of a host goes away, as those of containers do, while a cache rank runs: new links to it must open all
the same. The host is a network namespace. Exits with 77 where these are not allowed.

usage: lost_interface.py WINNOW MODEL
"""

import json
import sys

from network import Network, wait_until

WINNOW, MODEL = sys.argv[1:3]
PORT = 8000
BODY = {"prompt": "The code of nerita is 271828.", "max_tokens": 8, "temperature": 0}


def ip(host, command):
    done = host.run("ip", *command.split())
    assert done.returncode == 0, f"ip {command}: {done.stderr}"


def answers(host):
    status, text = host.get(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(BODY))
    assert status == 200, f"{status}: {text}"
    return json.loads(text)["choices"][0]["text"]


def registered(host):
    status, text = host.get("http://127.0.0.1:9100/ranks")
    return {rank["rank"] for rank in json.loads(text)["ranks"]} if status == 200 else set()


with Network() as network:
    host = network.host("host", "10.77.1.2")
    for command in ("link add leaving type veth peer name far", "addr add 10.77.9.9/24 dev leaving",
                    "link set leaving up", "link set far up"):
        ip(host, command)
    common = ["--insecure"]
    host.start("router", WINNOW, "router", f"--model={MODEL}", f"--http=127.0.0.1:{PORT}", "--grpc=127.0.0.1:8001",
               "--metrics=127.0.0.1:9100", *common)
    cache = host.start("cache", WINNOW, "cache-rank", "--rank=cache-0", "--router=127.0.0.1:8001", "--memory=256MiB",
                       "--metrics=127.0.0.1:9101", *common)

    def inference(name, port):
        host.start(name, WINNOW, "inference-rank", f"--rank={name}", f"--model={MODEL}", "--router=127.0.0.1:8001",
                   "--transport=ucx", f"--metrics=127.0.0.1:{port}", "--max-context=1024", *common)
        wait_until(f"{name} is registered", lambda: name in registered(host))

    inference("inference-0", 9102)
    wait_until("the router is ready", lambda: host.get("http://127.0.0.1:9100/ready")[0] == 200)
    expected = answers(host)
    ip(host, "link del leaving")
    assert answers(host) == expected, "links that were open have not stayed so"

    # Only the new rank is left, which must open a link.
    host.processes[2].stop()
    inference("inference-1", 9103)
    wait_until("the router is ready", lambda: host.get("http://127.0.0.1:9100/ready")[0] == 200)
    assert answers(host) == expected
    assert cache.process.poll() is None, cache.text()
print("passed")
