#!/usr/bin/env python3
"""Requests leave one connected tree of spans each, whichever way they come and whatever is lost under them; a collector
that is away costs nothing but the spans.

usage: tracing.py WINNOW SOURCE_DIR GRPC_CALL
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from collector import Collector
from processes import Processes, free_port
from waiting import wait_until

winnow, source, grpc_call = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]), os.path.abspath(sys.argv[3])
model = source / "deploy/models/demo"
TRACE, CLIENT_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
DOCUMENT = " ".join(f"Item {i} is {i * i}." for i in range(120))


def step(text):
    print(f"-- {text}", flush=True)


class Cluster:
    def __init__(self, processes, endpoint, router_options=(), environment=None):
        self.http, self.grpc, self.metrics = (free_port() for _ in range(3))
        self.processes, self.environment = processes, environment
        tracing = [f"--otlp-endpoint={endpoint}"] if endpoint else []
        self.router = processes.start("router", [
            winnow, "router", "--rank=router-0", f"--model={model}", "--budget=128", f"--http=127.0.0.1:{self.http}",
            f"--grpc=127.0.0.1:{self.grpc}", f"--metrics=127.0.0.1:{self.metrics}", *tracing, *router_options], environment)
        self.cache = processes.start("cache-0", [
            winnow, "cache-rank", "--rank=cache-0", f"--router=127.0.0.1:{self.grpc}", "--threads=1", "--memory=256MiB",
            "--fast-memory=24MiB", *tracing], environment)
        self.tracing = tracing
        self.inference = {}
        self.start_inference("inference-0")

    def start_inference(self, name):
        self.inference[name] = self.processes.start(name, [
            winnow, "inference-rank", f"--rank={name}", f"--router=127.0.0.1:{self.grpc}", "--threads=1",
            f"--model={model}", "--budget=128", "--device=cpu", "--max-context=4096", *self.tracing],
            self.environment)

    def ranks(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ranks", timeout=5) as answer:
            return json.loads(answer.read())["ranks"]

    def admin(self, order, rank):
        subprocess.run([winnow, "admin", order, rank, f"--server=127.0.0.1:{self.grpc}"], check=True, timeout=30,
                       stdout=subprocess.DEVNULL)

    def await_ranks(self, count):
        def ready():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=5):
                    return sum(each["role"] == "inference-rank" for each in self.ranks()) >= count
            except OSError:
                return False
        wait_until("the cluster is ready", ready)

    def complete(self, headers=(), **fields):
        body = {"prompt": f"{DOCUMENT} Item 7 is", "max_tokens": 24, "temperature": 0, "ignore_eos": True, **fields}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/v1/completions", json.dumps(body).encode(),
                                         {"content-type": "application/json", **dict(headers)})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def metric(self, name, **labels):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()))

    def stop(self):
        for process in [self.router, self.cache, *self.inference.values()]:
            if process.process.poll() is None:
                process.process.send_signal(signal.SIGTERM)
        for process in [self.router, self.cache, *self.inference.values()]:
            process.process.wait(30)


def one(spans, **wanted):
    found = [span for span in spans if all(getattr(span, key) == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, found, spans)
    return found[0]


def expect_tree(spans, root):
    """Every other span has a parent among them, and lies in it; a cache rank lets go a moment after the rest."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), spans
    for span in spans:
        assert span.start <= span.end, span
        if span is root:
            continue
        parent = by_id.get(span.parent)
        assert parent is not None, (span, spans)
        assert parent.start <= span.start, (span, parent)
        assert span.end <= parent.end or span.service == "winnow-cache-rank", (span, parent)


def expect_path(spans, root):
    """Router, inference rank and cache rank, each below the one before."""
    for phase in ("queue", "prefill", "decode"):
        assert one(spans, service="winnow-router", name=phase).parent == root.span_id
    attempt = one(spans, service="winnow-router", name="dispatch inference-0")
    assert attempt.parent == root.span_id and attempt.kind == 3
    sequence = one(spans, service="winnow-inference-rank", name="sequence")
    assert sequence.parent == attempt.span_id and sequence.kind == 2 and sequence.rank == "inference-0"
    for phase in ("queue", "open", "prefill", "decode"):
        assert one(spans, service="winnow-inference-rank", name=phase).parent == sequence.span_id
    stored = one(spans, service="winnow-cache-rank")
    assert stored.parent == sequence.span_id and stored.name == "open" and stored.kind == 2
    return attempt, sequence, stored


def of_request(collector, trace_id, count):
    wait_until(f"{count} spans of the trace are there", lambda: len(collector.of_trace(trace_id)) >= count, 20,
               lambda: collector.of_trace(trace_id))
    return collector.of_trace(trace_id)


# Root, three phases and an attempt; a sequence and its four phases; what the cache rank says.
SPANS = 5 + 5 + 1

with Processes() as processes:
    collector = Collector()
    cluster = Cluster(processes, collector.url)
    cluster.await_ranks(1)

    step("an HTTP request in its client's trace: one tree through all roles")
    answer = cluster.complete({"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01", "tracestate": "vendor=1",
                               "x-request-id": "traced-1"})
    spans = of_request(collector, TRACE, SPANS)
    root = one(spans, name="text_completion demo")
    assert root.parent == CLIENT_SPAN and root.service == "winnow-router" and root.kind == 2
    expect_tree(spans, root)
    attempt, sequence, stored = expect_path(spans, root)
    usage, said = answer["usage"], root.attributes
    assert said["gen_ai.operation.name"] == "text_completion" and said["gen_ai.request.model"] == "demo", said
    assert said["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] and said["gen_ai.usage.output_tokens"] == 24
    assert said["gen_ai.response.finish_reasons"] == ["length"] and said["gen_ai.response.id"] == "traced-1"
    assert 0 < said["winnow.time_to_first_token_s"] < (root.end - root.start) / 1e9, said
    assert "error.type" not in said and not root.failed and not root.events, root
    assert {span.state for span in spans} == {"vendor=1"}
    assert sequence.attributes["winnow.generated_tokens"] == 24
    assert sequence.attributes["winnow.prompt_tokens"] == usage["prompt_tokens"]
    kv = stored.attributes
    assert kv["winnow.kv.positions"] >= usage["prompt_tokens"] and kv["winnow.outcome"] == "released", kv
    assert kv["winnow.kv.rows"] >= kv["winnow.kv.positions"] and kv["winnow.kv.large_tier.bytes"] > 0, kv
    assert kv["winnow.kv.fast_tier.index_bytes"] >= 0 and kv["winnow.kv.scored_key_bytes"] > 0, kv
    assert root.resource["service.version"] and root.resource["host.name"], root.resource

    step("its log line names the trace")
    wait_until("the line is there", lambda: re.search(rf"id=traced-1 .*trace_id={TRACE}", cluster.router.text()), 10)

    step("a gRPC request: a trace that begins at the router")
    before = set(span.trace_id for span in collector.spans)
    subprocess.run([winnow, "generate", f"--server=127.0.0.1:{cluster.grpc}", "--temperature=0", "--max-tokens=8",
                    f"{DOCUMENT} What is item 9?"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    (trace_id,) = wait_until("its trace is there", lambda: set(span.trace_id for span in collector.spans) - before, 20)
    spans = of_request(collector, trace_id, SPANS)
    (root,) = [span for span in spans if span.parent is None]
    assert root.attributes["gen_ai.operation.name"] in ("chat", "text_completion") and root.state is None
    expect_tree(spans, root)
    expect_path(spans, root)

    step("a gRPC request in its client's trace, by metadata of the call; unsampled, it makes no spans")
    trace = "4bf92f3577b34da6a3ce929d0e0e473a"
    for flags in ("00", "01"):
        subprocess.run([grpc_call, f"127.0.0.1:{cluster.grpc}", f"00-{trace}-{CLIENT_SPAN}-{flags}", "vendor=2"], check=True,
                       timeout=60)
    spans = of_request(collector, trace, SPANS)
    assert len(spans) == SPANS, spans
    root = one(spans, name="text_completion demo")
    assert root.parent == CLIENT_SPAN and root.kind == 2 and {span.state for span in spans} == {"vendor=2"}, spans
    expect_tree(spans, root)
    expect_path(spans, root)

    step("a malformed traceparent is no error, and begins no trace of that name; an unsampled one makes no spans")
    cluster.complete({"traceparent": "00-4BF92F3577B34DA6A3CE929D0E0E4737-00f067aa0ba902b7-01", "x-request-id": "bad"})
    cluster.complete({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4738-00f067aa0ba902b7-00", "x-request-id": "not"})
    wait_until("the lines are there", lambda: re.search(r"id=not .*trace_id=4bf92f3577b34da6a3ce929d0e0e4738",
                                                        cluster.router.text()), 10)
    assert not re.search(r"trace_id=4bf92f3577b34da6a3ce929d0e0e4737", cluster.router.text(), re.I)
    (made,) = re.findall(r"id=bad .*trace_id=(\w{32})", cluster.router.text())
    of_request(collector, made, SPANS)
    assert not collector.of_trace("4bf92f3577b34da6a3ce929d0e0e4738")

    step("kill -9 of the inference rank in mid-answer: the request tells of the failover")
    trace = "4bf92f3577b34da6a3ce929d0e0e4739"
    # The answer must not end before its rank does: a fast machine makes a thousand tokens in a second, so which rank has
    # the request is decided beforehand, and the kill comes a few milliseconds into an answer of seconds.
    tokens = 2400
    killed = "inference-0"
    cluster.start_inference("inference-1")
    cluster.await_ranks(2)
    cluster.admin("cordon", "inference-1")
    chunks = 0
    body = {"prompt": f"{DOCUMENT} Item 7 is", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://127.0.0.1:{cluster.http}/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json", "traceparent": f"00-{trace}-{CLIENT_SPAN}-01"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunks += 1
            if chunks == 20:
                cluster.admin("uncordon", "inference-1")
                cluster.inference[killed].kill()
    assert chunks > 20
    survivor = next(name for name in cluster.inference if name != killed)
    roots = wait_until("the request's span is there", lambda: [span for span in collector.of_trace(trace)
                                                               if span.name == "text_completion demo"], 20)
    (failover,) = [event for event in roots[0].events if event[0] == "failover"]
    assert failover[1]["winnow.rank"] == killed and failover[1]["winnow.failover"] == "reattach", failover
    assert roots[0].start <= failover[2] <= roots[0].end
    assert roots[0].attributes["gen_ai.usage.output_tokens"] == tokens, roots
    spans = wait_until("the survivor's spans are there", lambda: [
        span for span in collector.of_trace(trace) if span.rank == survivor and span.name == "sequence"] and
        collector.of_trace(trace), 20)
    lost, taken = one(spans, name=f"dispatch {killed}"), one(spans, name=f"dispatch {survivor}")
    assert lost.failed and not taken.failed and lost.end <= taken.start
    assert lost.parent == taken.parent == roots[0].span_id
    assert one(spans, rank=survivor, name="sequence").parent == taken.span_id
    wait_until("the cache rank tells of both", lambda: {
        span.name: span.attributes["winnow.outcome"] for span in collector.of_trace(trace)
        if span.service == "winnow-cache-rank"}.keys() == {"open", "attach"}, 20)

    step("a collector that is away costs spans, not requests")
    exported = cluster.metric("winnow_trace_spans_exported_total")
    assert exported > 0 and cluster.metric("winnow_trace_spans_dropped_total") == 0
    collector.stop()
    for _ in range(3):
        assert cluster.complete()["usage"]["completion_tokens"] == 24
    wait_until("what is dropped is counted", lambda: cluster.metric("winnow_trace_spans_dropped_total", reason="export") >= 15,
               20)
    assert "takes no traces" in cluster.router.text()
    cluster.inference.pop(killed)
    cluster.stop()

step("OpenTelemetry's variables are read; options come before them")
with Processes() as processes:
    collector = Collector()
    variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces", "OTEL_TRACES_SAMPLER": "always_off",
                 "OTEL_SERVICE_NAME": "chat", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test,service.namespace=a%20b"}
    cluster = Cluster(processes, "", environment=variables)
    cluster.await_ranks(1)
    cluster.complete()
    cluster.complete({"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01"})
    cluster.stop()
    spans = collector.of_trace(TRACE)
    assert len(spans) == SPANS and len(collector.spans) == SPANS, collector.spans
    assert {span.service for span in spans} == {"chat"}, spans
    for span in spans:
        assert span.resource["deployment.environment"] == "test" and span.resource["service.namespace"] == "a b"
    assert {(span.resource["winnow.role"], span.rank) for span in spans} == {
        ("router", "router-0"), ("inference-rank", "inference-0"), ("cache-rank", "cache-0")}, spans

    cluster = Cluster(processes, collector.url, ["--trace-sample=1"],
                      variables | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces",
                                   "OTEL_SDK_DISABLED": "true"})
    cluster.await_ranks(1)
    cluster.complete()
    cluster.stop()
    assert len(collector.spans) == 2 * SPANS, collector.spans
    collector.stop()

step("spans that wait are sent when a process stops; without sampling there are none")
with Processes() as processes:
    collector = Collector()
    cluster = Cluster(processes, collector.url, ["--trace-sample=0"])
    cluster.await_ranks(1)
    cluster.complete()
    cluster.complete({"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01"})
    cluster.stop()
    spans = collector.of_trace(TRACE)
    assert len(spans) == SPANS and len(collector.spans) == SPANS, collector.spans
    expect_tree(spans, one(spans, name="text_completion demo"))
    collector.stop()
print("passed")
