#!/usr/bin/env python3
"""Two routers of one manifest, with a real etcd: both serve, either can be killed, and so can the etcd.

usage: two_routers.py WINNOW SOURCE_DIR. Ends with 77 where etcd or python3-yaml is missing.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import etcd as etcd_server
from processes import Processes, free_port
from up_cluster import Cluster, answers, get, run, status
from waiting import wait_until

try:
    import yaml
except ImportError:
    print("skipped: there is no python3-yaml")
    raise SystemExit(77)
if not etcd_server.is_installed():
    print(f"skipped: there is no {etcd_server.ETCD} (Debian's etcd-server)")
    raise SystemExit(77)

winnow, source = os.path.abspath(sys.argv[1]), sys.argv[2]
os.chdir(source)
MANIFEST = "deploy/two-routers.yaml"
FREE_PORTS = ["--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"]
PROMPT = "The code of nerita is 271828. " * 20
began = time.monotonic()


def step(text):
    print(f"-- {time.monotonic() - began:5.1f} s: {text}", flush=True)


def addresses(ready, key):
    return ready[key].split(",")


def tokens(address):
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return get(address, "/v1/completions", body)["choices"][0]["token_ids"]


def generates(address):
    run(winnow, "generate", f"--server={address}", "--max-tokens=4", PROMPT,
        env={**os.environ, "no_proxy": "*", "no_grpc_proxy": "*"})


def ranks(address):
    return {rank["rank"] for rank in get(address, "/ranks")["ranks"]}


def listener(address):
    """The process that listens there."""
    port = address.split(":")[1]
    text = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True).stdout
    return int(text.split("pid=")[1].split(",")[0]) if "pid=" in text else None


class Stream(threading.Thread):
    """Answers of one router, one after the other, until it is told to stop."""

    def __init__(self, address, expected):
        super().__init__(daemon=True)
        self.address, self.expected, self.over, self.served, self.wrong = address, expected, threading.Event(), 0, None
        self.start()

    def run(self):
        while not self.over.is_set() and self.wrong is None:
            got = tokens(self.address)
            self.served += got == self.expected
            self.wrong = None if got == self.expected else got


def one_machine(processes, folder):
    etcd = etcd_server.Etcd(processes, folder)
    step(f"{MANIFEST} serves at both routers, over HTTP and gRPC, with the same tokens")
    cluster = Cluster(winnow, "-f", MANIFEST, f"--registry={etcd.url}", "--registry-lease=3s", *FREE_PORTS)
    ready = cluster.ready()
    http, grpc = addresses(ready, "http"), addresses(ready, "grpc")
    assert len(http) == len(set(http)) == 2 and len(addresses(ready, "metrics")) == 5, ready
    expected = tokens(http[0])
    assert tokens(http[1]) == expected
    for address in grpc:
        generates(address)
    for address in http:
        assert ranks(address) == {"inference-0", "inference-1", "cache-0"}, ranks(address)

    step("the registry has all of them, and a rank that knows it alone joins both routers")
    assert {key for key in etcd.records() if key.startswith("routers/")} == {f"routers/{each}" for each in grpc}
    assert len(etcd.records()) == 5, etcd.records()
    rank = processes.start("cache-9", [winnow, "cache-rank", "--rank=cache-9", f"--registry={etcd.url}",
                                       "--grpc=127.0.0.1:0", "--threads=1", "--memory=256MiB"])
    for address in http:
        wait_until(f"{address} knows cache-9", lambda: "cache-9" in ranks(address), otherwise=rank.text)
    rank.process.send_signal(signal.SIGTERM)
    assert rank.process.wait(60) == 0, rank.text()

    for victim in (0, 1):
        step(f"kill -9 of router-{victim}: the other one goes on, and it comes back where it was")
        other = Stream(http[1 - victim], expected)
        wait_until("the other one serves", lambda: other.served > 0)
        process = listener(http[victim])
        os.kill(process, signal.SIGKILL)
        served = other.served
        wait_until("the other one goes on", lambda: other.served > served + 2 or other.wrong)
        wait_until("another process", lambda: listener(http[victim]) not in (None, process), otherwise=cluster.text)
        wait_until("it is ready", lambda: status(http[victim], "/ready") == "200", otherwise=cluster.text)
        assert tokens(http[victim]) == expected
        other.over.set()
        other.join(60)
        assert other.wrong is None, other.wrong

    step("kill -9 of the etcd: both go on")
    etcd.process.kill()
    assert [tokens(address) for address in http] == [expected, expected]
    left = cluster.children()
    cluster.stop()
    assert not any(os.path.exists(f"/proc/{process}") for process in left)


def without_etcd():
    step("without its etcd the manifest serves all the same, and says so")
    cluster = Cluster(winnow, "-f", MANIFEST, f"--registry=etcd://127.0.0.1:{free_port()}", *FREE_PORTS)
    for address in addresses(cluster.ready(), "http"):
        answers(address)
    assert "does not answer" in cluster.text(), cluster.text()
    cluster.stop()


def nodes():
    step("routers on two nodes, without a registry: ranks of both know both")
    with open("deploy/cpu.yaml") as file:
        manifest = yaml.safe_load(file)
    del manifest["inference"]["ranks"], manifest["inference"]["device"], manifest["cache"]["ranks"]
    manifest["nodes"] = {"a": {"address": "127.78.0.1", "router": True, "inference_ranks": 1, "device": "cpu"},
                         "b": {"address": "127.78.0.2", "router": True, "cache_ranks": 1}}
    manifest["router"] = {"http": "127.0.0.1:0", "grpc": f"127.0.0.1:{free_port()}"}
    manifest["observability"] = {"metrics": "127.0.0.1:0"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(manifest, file, sort_keys=False)
        file.flush()
        clusters = [Cluster(winnow, "-f", file.name, "--node", name) for name in ("a", "b")]
        http = [cluster.ready()["http"] for cluster in clusters]
        for address in http:
            wait_until("it is ready", lambda: status(address, "/ready") == "200")
            assert ranks(address) == {"inference-0", "cache-0"}, ranks(address)
            answers(address)
        for cluster in clusters:
            cluster.stop()


with tempfile.TemporaryDirectory() as folder, Processes() as processes:
    one_machine(processes, folder)
    without_etcd()
    nodes()
print("passed")
