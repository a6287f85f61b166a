#!/usr/bin/env python3
"""What operators watch shows the truth: a real Prometheus discovers a loaded cluster through its router, every query of
every rule, dashboard and console has data, and killing each role raises its alert, which ends when the role is back.

usage: observability.py WINNOW SOURCE_DIR [PICTURES]. Ends with 77 where there is no Prometheus. Without an etcd queries of
what processes with a registry measure have no data, and are left out. PICTURES: a folder for
what the docs show, taken by Chromium: docs/images.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

try:
    import yaml
except ImportError:
    print("skipped: there is no python3-yaml")
    raise SystemExit(77)
if not shutil.which("prometheus"):
    print("skipped: there is no prometheus")
    raise SystemExit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import etcd as etcd_server
from processes import Processes, free_port
from waiting import wait_until

winnow, source = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
model = source / "deploy/models/demo"
HTTP, GRPC, METRICS, PROMETHEUS = (free_port() for _ in range(4))

# Prometheus scrapes once a second here, so that durations of rules shrink likewise. A rate needs two samples or more.
LEAST_RANGE_S, LEAST_FOR_S, SHRINK = 8, 2, 30


def step(text):
    print(f"-- {text}", flush=True)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def ask(prometheus_path, **query):
    status, body = get(f"http://127.0.0.1:{PROMETHEUS}{prometheus_path}?{urllib.parse.urlencode(query)}")
    assert status == 200, (prometheus_path, query, status, body)
    return json.loads(body)["data"]


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def shrunk(expression):
    """The expression with windows that fit a test of a minute."""
    def window(match):
        least = max(seconds(match[1]) // SHRINK, LEAST_RANGE_S)
        return f"[{least}s:1s]" if match[2] else f"[{least}s]"
    return re.sub(r"\[(\d+[smh])(:\d+[smh])?\]", window, expression)


def write_rules(folder):
    for name in ("winnow-records.yaml", "winnow-alerts.yaml"):
        rules = yaml.safe_load((source / "deploy/prometheus" / name).read_text())
        for group in rules["groups"]:
            for rule in group["rules"]:
                rule["expr"] = shrunk(rule["expr"])
                if "for" in rule:
                    rule["for"] = f"{max(seconds(rule['for']) // SHRINK, LEAST_FOR_S)}s"
        (folder / name).write_text(yaml.safe_dump(rules))


def write_configuration(folder):
    """The shipped one, with this test's addresses and pace."""
    configuration = yaml.safe_load((source / "deploy/prometheus/prometheus.yaml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (discovery,) = configuration["scrape_configs"][0]["http_sd_configs"]
    discovery.update(url=discovery["url"].replace("9100", str(METRICS)), refresh_interval="1s")
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))


def make_keys(folder):
    """A file of two tenants' keys, and the keys; the second may ask for short answers alone."""
    file = folder / "keys.yaml"
    def add(*limits):
        added = subprocess.run([winnow, "keys", "add", str(file), *limits], check=True, capture_output=True, text=True)
        return re.search(r"wk-\S+", added.stdout)[0]
    return file, [add("--name=alpha", "--tenant=north"), add("--name=beta", "--tenant=south", "--max-answer-tokens=100")]


class Cluster:
    """Every role in a process of its own that nobody starts again."""

    def __init__(self, processes, keys_file, registry):
        self.processes = processes
        self.registry = registry
        self.keys_file = keys_file
        self.running = {}

    def start(self, name):
        role = {"router": "router", "cache": "cache-rank"}.get(name.split("-")[0], "inference-rank")
        command = [winnow, role, f"--rank={name}", "--log-level=warning", *self.registry]
        if role == "router":
            command += [f"--http=127.0.0.1:{HTTP}", f"--grpc=127.0.0.1:{GRPC}", f"--metrics=127.0.0.1:{METRICS}",
                        f"--api-keys={self.keys_file}"]
        else:
            command += [f"--router=127.0.0.1:{GRPC}", "--threads=1"]
        if role == "cache-rank":
            command += ["--memory=256MiB", "--fast-memory=24MiB"]
        else:
            command += [f"--model={model}", "--budget=128"]
        if role == "inference-rank":
            command += ["--device=cpu", "--max-context=4096", "--max-running=4"]
            command += ["--role=prefill"] if name == "prefill-0" else []
        self.running[name] = self.processes.start(name, command)

    def kill(self, name):
        self.running.pop(name).kill()


class Load:
    """Users of two tenants, of whom some ask for what they may not have, or have no key: long prompts with a common beginning, several samples, structured output, until it is over."""

    def __init__(self, keys):
        self.keys = keys
        self.over = threading.Event()
        self.served = 0
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, user):
        turn = 0
        while not self.over.is_set():
            turn += 1
            # A document that comes again, and one that does not.
            document = " ".join(f"Item {i} of {user if turn % 2 else turn * 7 + user} is {i * i}." for i in range(90))
            body = {"prompt": f"{document} Item 7 is", "max_tokens": 48, "temperature": 0.7, "n": 1 + turn % 2}
            if turn % 4 == 3:
                body["guided_regex"] = "[0-9 ]{30,40}"
            if turn % 5 == 1:
                body["max_tokens"] = 101  # more than one of the keys allows
            keys = ["", "wk-wrong", *[self.keys[user % 2]] * 4]
            request = urllib.request.Request(
                f"http://127.0.0.1:{HTTP}/v1/completions", json.dumps(body).encode(),
                {"content-type": "application/json", "authorization": f"Bearer {keys[turn % len(keys)]}"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                    self.served += 1
            except OSError:
                time.sleep(0.2)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(70)


def queries_of_dashboards():
    for path in sorted((source / "deploy/grafana/dashboards").glob("*.json")):
        dashboard = json.loads(path.read_text())
        variables = {each["name"] for each in dashboard["templating"]["list"]}
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", f"{LEAST_RANGE_S}s")
                for used in re.findall(r"\$(\w+)", expression):
                    assert used in variables, (path.name, panel["title"], used)
                yield f"{path.name}: {panel['title']}", re.sub(r"\$\w+", ".*", shrunk(expression))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
                yield f"{path.name}: ${variable['name']}", f"count by ({label}) ({metric})"


def queries_of_rules():
    """Of alerts, what is compared: an alert that does not fire has no data."""
    for name in ("winnow-records.yaml", "winnow-alerts.yaml"):
        for group in yaml.safe_load((source / "deploy/prometheus" / name).read_text())["groups"]:
            for rule in group["rules"]:
                for part in re.split(r" and | < (?=\D)", shrunk(rule["expr"])):
                    compared = re.sub(r"\s(?:[<>]|==)\s+[0-9.]+$", "", part.strip())
                    yield rule.get("record") or rule["alert"], compared


def lacks_data(expression):
    result = ask("/api/v1/query", query=expression)["result"]
    values = [sample["value"][1] for sample in result]
    return not any(value != "NaN" for value in values)


def firing(name, **labels):
    return [alert for alert in ask("/api/v1/alerts")["alerts"]
            if alert["labels"]["alertname"] == name and alert["state"] == "firing"
            and labels.items() <= alert["labels"].items()]


def up(rank):
    result = ask("/api/v1/query", query=f'up{{job="winnow",rank="{rank}"}}')["result"]
    return [sample["value"][1] for sample in result] == ["1"]


def ready():
    return get(f"http://127.0.0.1:{HTTP}/ready")[0] == 200


def console(name):
    """The page as a person reads it: without markup."""
    status, page = get(f"http://127.0.0.1:{PROMETHEUS}/consoles/{name}")
    assert status == 200, page
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.S))


def picture(name, page):
    if len(sys.argv) < 4:
        return
    path = pathlib.Path(sys.argv[3]) / name
    subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--window-size=1180,1190", f"--screenshot={path}", f"http://127.0.0.1:{PROMETHEUS}/consoles/{page}"],
                   check=True, stderr=subprocess.DEVNULL, timeout=60)


step("the rules hold what they promise on recorded histories")
subprocess.run(["promtool", "test", "rules", source / "tests/observability/alerts_test.yaml"], check=True,
               stdout=subprocess.DEVNULL)
subprocess.run(["promtool", "check", "config", source / "deploy/prometheus/prometheus.yaml"], check=True,
               stdout=subprocess.DEVNULL)

with tempfile.TemporaryDirectory() as folder, Processes() as processes:
    folder = pathlib.Path(folder)
    write_rules(folder)
    write_configuration(folder)
    keys_file, keys = make_keys(folder)
    etcd = etcd_server.Etcd(processes, folder) if etcd_server.is_installed() else None
    cluster = Cluster(processes, keys_file, [f"--registry={etcd.url}"] if etcd else [])
    roles = ["router-0", "cache-0", "cache-1", "prefill-0", "inference-0", "inference-1"]
    for name in roles:
        cluster.start(name)
    prometheus = processes.start("prometheus", [
        "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS}", f"--web.console.templates={source}/deploy/prometheus/consoles"])
    wait_until("Prometheus answers", lambda: get(f"http://127.0.0.1:{PROMETHEUS}/-/ready")[0] == 200)
    wait_until("the cluster is ready", ready)

    step("Prometheus finds every process through the router")
    for name in roles:
        wait_until(f"{name} is scraped", lambda: up(name))

    load = Load(keys)
    step("under load every query of rules, dashboards and their variables has data")
    queries = list(queries_of_rules()) + list(queries_of_dashboards())
    assert len(queries) > 100, len(queries)
    if etcd is None:
        print("   but those of a registry: there is no etcd")
        queries = [(where, query) for where, query in queries if "winnow_registry_" not in query]
    missing = queries

    def all_have_data():
        missing[:] = [(where, query) for where, query in missing if lacks_data(query)]
        return not missing

    wait_until("every query has data", all_have_data, 90, lambda: missing)
    step("and the console shows it; nothing alerts")
    text = console("winnow.html")
    for shown in ["No alert.", "demo", *roles]:
        assert shown in text, (shown, text)
    assert not re.search(r"\bNaN\b|error|no value", text), text
    assert not firing("WinnowProcessDown") and not firing("WinnowRankLost"), ask("/api/v1/alerts")

    picture("console.png", "winnow.html")

    step("`winnow status` says the same in the terminal")
    command = [winnow, "status", f"--server=127.0.0.1:{METRICS}", "--interval=2s"]
    table = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert table.startswith("ready\n") and all(name in table for name in roles), table
    print("   " + table.replace("\n", "\n   ").rstrip())
    status = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, timeout=60).stdout)
    assert status["ready"] and status["tokens_per_s"] > 0 and 0 < status["captured_mass"] <= 1, status
    assert sorted(each["rank"] for each in status["processes"] if each["answers"]) == sorted(roles), status

    for name, kind in [("inference-1", "inference"), ("cache-1", "cache")]:
        step(f"killing {name} alerts, and ends when it is back")
        cluster.kill(name)
        wait_until("the alert fires", lambda: firing("WinnowRankLost", kind=kind), 30, lambda: ask("/api/v1/alerts"))
        assert kind in console("winnow.html")
        cluster.start(name)
        wait_until("the alert ends", lambda: not firing("WinnowRankLost", kind=kind), 60, lambda: ask("/api/v1/alerts"))
    assert ready()

    step("killing all that decode alerts that nothing is served")
    for name in ("prefill-0", "inference-0", "inference-1"):
        cluster.kill(name)
    wait_until("the alert fires", lambda: firing("WinnowServesNothing", kind="inference"), 30)
    for name in ("prefill-0", "inference-0", "inference-1"):
        cluster.start(name)
    wait_until("the alert ends", lambda: not firing("WinnowServesNothing"), 60)

    if etcd is not None:
        step("killing the etcd alerts, and ends when it is back")
        etcd.process.kill()
        wait_until("the alert fires", lambda: firing("WinnowRegistryIsAway", rank="cache-0"), 60)
        etcd.start()
        wait_until("the alert ends", lambda: not firing("WinnowRegistryIsAway"), 60)
        assert ready()

    step("killing the router alerts, and ends when it is back")
    cluster.kill("router-0")
    wait_until("the alert fires", lambda: firing("WinnowProcessDown", rank="router-0"), 30)
    assert "WinnowProcessDown" in console("winnow.html")
    cluster.start("router-0")
    wait_until("the alert ends", lambda: not firing("WinnowProcessDown"), 60)
    wait_until("the cluster is ready", ready, 60)
    served = load.served
    wait_until("requests are served again", lambda: load.served > served, 60)
    load.stop()
print("passed")
