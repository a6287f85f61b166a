#!/usr/bin/env python3
"""Two routers and their ranks find each other in an etcd, and lose routers, the etcd, and leases.

usage: registry.py WINNOW MODEL. Ends with 77 where there is no etcd.
"""

import http.client
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "observability"))
import etcd as etcd_server
from processes import Processes, free_port
from waiting import wait_until

winnow, model = sys.argv[1:3]
STREAMS, TOKENS = 32, 96
LIMIT_S = 180


def step(text):
    print(f"-- {time.monotonic() - began:5.1f} s: {text}", flush=True)


def get(address, path):
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{address}{path}", timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def metric(address, name):
    """The sum over labels, or None."""
    values = [float(line.rsplit(" ", 1)[1]) for line in get(address, "/metrics")[1].splitlines()
              if line.startswith((name + "{", name + " "))]
    return sum(values) if values else None


class Role:
    """A process of the cluster that was given the registry and no router."""

    def __init__(self, processes, etcd, role, rank, *options):
        self.rank, self.metrics = rank, f"127.0.0.1:{free_port()}"
        self.process = processes.start(rank, [
            winnow, role, f"--rank={rank}", f"--registry={etcd.url}", "--registry-lease=3s", f"--metrics={self.metrics}",
            *options])

    def signal(self, number):
        self.process.process.send_signal(number)

    def metric(self, name):
        return metric(self.metrics, name)


def router(processes, etcd, rank, grpc=None):
    address, grpc = f"127.0.0.1:{free_port()}", grpc or f"127.0.0.1:{free_port()}"
    role = Role(processes, etcd, "router", rank, f"--model={model}", "--budget=256", f"--http={address}", f"--grpc={grpc}")
    role.http, role.grpc = address, grpc
    return role


def has_all_ranks(router):
    return len(json.loads(get(router.http, "/ranks")[1] or "{}").get("ranks", [])) == 3


def inference(processes, etcd, rank):
    return Role(processes, etcd, "inference-rank", rank, f"--model={model}", "--budget=256", "--device=cpu",
                "--grpc=127.0.0.1:0", "--threads=1", "--max-context=2048")


class Client(threading.Thread):
    """A stream that is resumed as docs/api.md says, from one router after the other."""

    def __init__(self, number, routers, tokens=TOKENS):
        super().__init__(daemon=True)
        self.routers, self.error, self.ids, self.seen, self.finishes = list(routers), "", [], set(), 0
        self.body = {"prompt": f"The code of nerita is {number}. " * (4 + number % 7), "max_tokens": tokens,
                     "ignore_eos": True, "return_token_ids": True, "stream": True, "winnow": {"resumable": True}}
        self.body |= {"temperature": 1.1, "seed": number} if number % 2 else {"temperature": 0}
        self.headers, self.done = {}, False
        self.start()

    def run(self):
        end = time.monotonic() + LIMIT_S
        while not self.done and not self.error and time.monotonic() < end:
            try:
                self.read(self.routers[0])
            except (OSError, http.client.HTTPException):
                pass
            if not self.done:
                self.routers.append(self.routers.pop(0))
                time.sleep(0.1)

    def read(self, address):
        connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
        connection.request("POST", "/v1/completions", json.dumps(self.body), self.headers)
        reply = connection.getresponse()
        if reply.status != 200:
            text = reply.read().decode()
            if reply.status != 503:
                self.error = text
            return
        if token := reply.getheader("Winnow-Resume"):
            self.headers["Winnow-Resume"] = token
        event = ""
        for line in reply:
            line = line.decode().rstrip("\n")
            if line.startswith("id: "):
                event = line.removeprefix("id: ")
            elif line.startswith("data: "):
                self.take(event, line.removeprefix("data: "))
                event = ""

    def take(self, event, data):
        if data == "[DONE]":
            self.done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            return
        if event:
            self.headers["Last-Event-ID"] = event
            if event in self.seen:
                self.error = f"event {event} came twice"
            self.seen.add(event)
        for choice in chunk["choices"]:
            self.ids += choice.get("token_ids") or []
            self.finishes += choice.get("finish_reason") is not None


def answers(clients):
    for client in clients:
        client.join(LIMIT_S)
        assert client.done and not client.error and client.finishes == 1, (client.error, len(client.ids), client.finishes)
        assert len(client.ids) == client.body["max_tokens"], len(client.ids)
    return [client.ids for client in clients]


def begun(clients):
    wait_until("every stream has begun", lambda: all(len(client.ids) >= 3 for client in clients), LIMIT_S)


def main(processes, folder):
    etcd = etcd_server.Etcd(processes, folder)
    step("routers and ranks that know nothing but the registry come together")
    routers = [router(processes, etcd, f"router-{i}") for i in range(2)]
    ranks = [inference(processes, etcd, f"inference-{i}") for i in range(2)]
    cache = Role(processes, etcd, "cache-rank", "cache-0", "--grpc=127.0.0.1:0", "--threads=1", "--memory=256MiB")
    for each in routers:
        wait_until(f"{each.rank} is ready", lambda: get(each.http, "/ready")[0] == 200, LIMIT_S)
        wait_until(f"{each.rank} has all ranks", lambda: has_all_ranks(each), LIMIT_S)
    records = etcd.records()
    assert {key.split("/")[0] for key in records} == {"routers", "inference-ranks", "cache-ranks"}, records
    assert len(records) == 5, records
    undisturbed = answers([Client(i, [routers[i % 2].http]) for i in range(STREAMS)])

    step("kill -9 of a router: its clients go on with the other one, with the same tokens")
    clients = [Client(i, [routers[i % 4 == 3].http, routers[i % 4 != 3].http]) for i in range(STREAMS)]
    begun(clients)
    routers[0].process.kill()
    assert answers(clients) == undisturbed
    assert metric(routers[1].metrics, "winnow_router_resumed_outputs_total") > 0
    assert metric(routers[1].metrics, "winnow_router_mismatched_tokens_total") == 0
    wait_until("its lease ends", lambda: sum(key.startswith("routers/") for key in etcd.records()) == 1, LIMIT_S)
    for rank in [*ranks, cache]:
        wait_until(f"{rank.rank} knows", lambda: rank.metric("winnow_registry_routers") == 1, LIMIT_S)

    step("kill -9 of etcd: streams go on, and new requests are served")
    few = range(8)
    clients = [Client(i, [routers[1].http]) for i in few]
    begun(clients)
    etcd.process.kill()
    assert answers(clients) == undisturbed[:8]
    for each in [routers[1], *ranks, cache]:
        wait_until(f"{each.rank} says that it is away", lambda: each.metric("winnow_registry_connected") == 0, LIMIT_S)
        assert each.metric("winnow_registry_away_seconds") > 0
        assert "the registry has been away for" in each.process.text()
    assert answers([Client(i, [routers[1].http]) for i in few]) == undisturbed[:8]

    step("etcd back without its data: all is published again, and a new router is found")
    shutil.rmtree(etcd.data)
    etcd.start()
    wait_until("four processes are there again", lambda: len(etcd.records()) == 4, LIMIT_S)
    routers.append(router(processes, etcd, "router-2"))
    wait_until("router-2 is ready", lambda: get(routers[2].http, "/ready")[0] == 200, LIMIT_S)
    wait_until("router-2 has all ranks", lambda: has_all_ranks(routers[2]), LIMIT_S)
    assert answers([Client(i, [routers[2].http]) for i in few]) == undisturbed[:8]

    step("a rank is stopped until its lease is gone, and goes on: it comes back, and no token is wrong")
    key = "inference-ranks/inference-1"
    before = etcd.records()[key]
    clients = [Client(i, [routers[2].http]) for i in few]
    begun(clients)
    ranks[1].signal(signal.SIGSTOP)
    wait_until("its lease is gone", lambda: key not in etcd.records(), LIMIT_S)
    ranks[1].signal(signal.SIGCONT)
    wait_until("it is there again", lambda: etcd.records().get(key) == before, LIMIT_S)
    assert answers(clients) == undisturbed[:8]
    assert ranks[1].metric("winnow_registry_lost_leases_total") >= 1

    step("a rank is stopped and replaced, and goes on: it is fenced, also by a router that is too young to know, and ends")
    clients = [Client(i, [routers[2].http]) for i in few]
    begun(clients)
    ranks[1].signal(signal.SIGSTOP)
    wait_until("its lease is gone", lambda: key not in etcd.records(), LIMIT_S)
    replacement = inference(processes, etcd, "inference-1")
    wait_until("the later start is there", lambda: etcd.records().get(key, before) != before, LIMIT_S)
    routers[1].process.kill()
    routers[1] = router(processes, etcd, "router-1", routers[1].grpc)
    wait_until("the later start has joined", lambda: get(routers[1].http, "/ready")[0] == 200 and has_all_ranks(routers[1]),
               LIMIT_S)
    ranks[1].signal(signal.SIGCONT)
    assert ranks[1].process.process.wait(LIMIT_S) == 1
    assert "is fenced" in ranks[1].process.text(), ranks[1].process.text()
    assert answers(clients) == undisturbed[:8]
    assert etcd.records()[key] != before
    wait_until("the later start serves", lambda: get(replacement.metrics, "/ready")[0] == 200, LIMIT_S)
    assert answers([Client(i, [routers[2].http]) for i in few]) == undisturbed[:8]

    step("who is told to stop takes itself out")
    for each in [replacement, ranks[0], cache, routers[1], routers[2]]:
        each.signal(signal.SIGTERM)
    for each in [replacement, ranks[0], cache, routers[1], routers[2]]:
        assert each.process.process.wait(LIMIT_S) == 0, each.process.text()
    assert etcd.records() == {}, etcd.records()


if not etcd_server.is_installed():
    print(f"skipped: there is no {etcd_server.ETCD} (Debian's etcd-server)")
    sys.exit(77)
began = time.monotonic()
with tempfile.TemporaryDirectory() as folder, Processes() as processes:
    main(processes, folder)
print("passed")
