#!/usr/bin/env python3
"""A cluster over several hosts, which are network namespaces: addresses, dial-back, readiness, another router.

usage: two_hosts.py WINNOW MODEL. Ends with 77 where network namespaces are not allowed.
"""

import json
import signal
import sys

from network import Network, wait_until

winnow, model = sys.argv[1:3]
ROUTER = "10.77.0.1"
RANKS = "10.77.0.2"
STANDBY = "10.77.0.3"
STORE = "10.77.0.4"
HTTP = f"http://{ROUTER}:8000"
PROMPT = json.dumps({"prompt": "The code of nerita is 271828.", "max_tokens": 4, "temperature": 0})
SMALL = ["--threads=1"]
OPEN = ["--insecure"]  # a network of its own


def router(host):
    return host.start("router", winnow, "router", f"--model={model}", "--budget=256", f"--http={host.address}:8000",
                      f"--grpc={host.address}:8001", f"--metrics={host.address}:9100", *OPEN)


def cache(host, name="cache-0", *options, to=f"{ROUTER}:8001"):
    return host.start(name, winnow, "cache-rank", f"--rank={name}", f"--router={to}", "--memory=256MiB", *SMALL, *OPEN,
                      *options)


def inference(host, name="inference-0", *options, to=f"{ROUTER}:8001"):
    return host.start(name, winnow, "inference-rank", f"--rank={name}", f"--router={to}", f"--model={model}",
                      "--device=cpu", "--budget=256", "--max-context=4096", "--max-running=4", *SMALL, *OPEN, *options)


def ready(host, http=HTTP):
    return host.get(f"{http}/ready")


def ranks(host, http=HTTP):
    return {rank["rank"]: rank for rank in json.loads(host.get(f"{http}/ranks")[1])["ranks"]}


def serves(host, http=HTTP):
    status, body = host.get(f"{http}/v1/completions", PROMPT)
    assert status == 200, (status, body)


def step(text):
    print(f"-- {text}", flush=True)


with Network() as network:
    first = network.host("router", ROUTER)
    worker = network.host("ranks", RANKS)

    step("ranks that are given nothing but --router advertise the address towards it, and requests are served")
    serving = router(first)
    wait_until("the router answers", lambda: ready(first)[0] == 503)
    parts = [cache(worker), inference(worker)]
    wait_until("the router is ready", lambda: ready(first)[0] == 200)
    for rank in ranks(first).values():
        assert rank["address"].startswith(f"{RANKS}:"), rank
        assert rank["metrics"].startswith(f"{RANKS}:"), rank
        assert first.get(f"http://{rank['metrics']}/ready")[0] == 200, rank
    serves(first)

    step("a wildcard listener advertises the same")
    wide = cache(worker, "cache-wide", "--grpc=0.0.0.0:0", "--metrics=0.0.0.0:0")
    wait_until("cache-wide is registered", lambda: "cache-wide" in ranks(first))
    assert ranks(first)["cache-wide"]["address"].startswith(f"{RANKS}:")
    assert wide.stop() == 0

    step("a rank that listens on loopback alone, or would advertise it, ends and says what to set")
    for options in (["--grpc=127.0.0.1:0"], ["--advertise=127.0.0.1"]):
        refused = cache(worker, "cache-lo", *options)
        assert refused.process.wait(30) == 1, refused.text()
        assert "--advertise" in refused.text() and f"{ROUTER}:8001" in refused.text(), refused.text()

    step("a rank that is not reached where it advertises does not count: its log, the router's and /ranks say why")
    parts.pop(0).stop()
    wait_until("the router is not ready without a cache rank", lambda: ready(first)[0] == 503)
    lost = cache(worker, "cache-lost", "--advertise=10.77.0.99")
    wait_until("/ranks has the reason",
               lambda: "cannot reach cache-lost at 10.77.0.99:" in ranks(first).get("cache-lost", {}).get("reason", ""))
    wait_until("/ready has the reason", lambda: "cannot reach cache-lost at 10.77.0.99:" in ready(first)[1])
    assert ready(first)[0] == 503
    wait_until("the rank's log has the reason", lambda: "cannot reach cache-lost at 10.77.0.99:" in lost.text())
    wait_until("the router's log has the reason", lambda: "cannot reach cache-lost at 10.77.0.99:" in serving.text())
    lost.stop()

    step("a cache rank that the router reaches and the inference rank does not: not ready, until the way is there")
    store = network.host("store", STORE)
    network.isolate(worker, store)
    parts.append(cache(store))
    wait_until("/ready says who does not reach whom",
               lambda: "inference-0: cannot reach cache-0 at 10.77.0.4:" in ready(first)[1])
    assert ranks(first)["inference-0"]["does_not_reach"] == ["cache-0"]
    assert ready(first)[0] == 503
    network.join(worker, store)
    wait_until("the router is ready", lambda: ready(first)[0] == 200)
    serves(first)

    step("and when the way is lost again")
    network.isolate(worker, store)
    wait_until("the router is not ready", lambda: ready(first)[0] == 503)
    network.join(worker, store)
    wait_until("the router is ready", lambda: ready(first)[0] == 200)
    serves(first)
    for part in parts:
        assert part.stop() == 0, part.text()

    step("of several routers each serves, and the others go on when one is lost")
    standby = network.host("standby", STANDBY)
    other = router(standby)
    both = f"{ROUTER}:8001,{STANDBY}:8001"
    parts = [cache(worker, to=both), inference(worker, to=both)]
    wait_until("both routers are ready", lambda: all(ready(first, f"http://{host}:8000")[0] == 200 for host in (ROUTER, STANDBY)))
    serves(first)
    serves(first, f"http://{STANDBY}:8000")
    serving.stop(signal.SIGKILL)
    serves(first, f"http://{STANDBY}:8000")
    assert ready(first, f"http://{STANDBY}:8000")[0] == 200
    for part in [*parts, other]:
        assert part.stop() == 0, part.text()
print("passed")
