#!/usr/bin/env python3
"""The manifests of deploy/: they fit the schema, what is rendered of them is committed, and those for CPUs serve.

usage: manifests.py WINNOW SOURCE_DIR
"""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

try:
    import yaml
except ImportError:
    print("skipped: there is no python3-yaml")
    raise SystemExit(77)

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from up_cluster import Cluster, answers, get, run, status
from waiting import wait_until

winnow, source = os.path.abspath(sys.argv[1]), sys.argv[2]
os.chdir(source)
manifests = sorted(glob.glob("deploy/*.yaml"))
kinds = ["kubernetes", "compose", "systemd", "slurm"]


def step(text):
    print(f"-- {text}", flush=True)


def fits_schema():
    try:
        import jsonschema
    except ImportError:
        return print("   skipped: there is no python3-jsonschema")
    schema = json.loads(run(winnow, "config", "schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in manifests:
        with open(path) as file:
            content = yaml.safe_load(file)
        validator.validate(content)
        # What the parser refuses the schema refuses.
        for wrong in ({"inference": {"ranks": 65}}, {"modle": {}}, {"cache": {"memory": "lots"}}, {"nodes": {"a": {}}},
                      {"router": {"stop_grace": "soon"}}, {"transport": "pigeon"}):
            broken = {**content, **wrong}
            assert list(validator.iter_errors(broken)), wrong
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                yaml.safe_dump(broken, file)
                file.flush()
                assert subprocess.run([winnow, "config", "check", file.name], capture_output=True).returncode == 1, wrong


def rendered_is_committed(folder):
    for kind in kinds:
        for path in manifests:
            name = pathlib.Path(path).stem
            run(winnow, "deploy", "render", kind, path, "--out", f"{folder}/{kind}/{name}")
        subprocess.run(["diff", "-ru", f"deploy/{kind}", f"{folder}/{kind}"], check=True)


def rendered_is_accepted(folder):
    for path in glob.glob(f"{folder}/**/*.yaml", recursive=True):
        with open(path) as file:
            list(yaml.safe_load_all(file))
    for path in glob.glob(f"{folder}/slurm/**/*.sbatch", recursive=True):
        run("bash", "-n", path)
    if shutil.which("kubectl"):
        for path in glob.glob(f"{folder}/kubernetes/*"):
            objects = list(yaml.safe_load_all(run("kubectl", "kustomize", path)))
            assert {"Deployment", "StatefulSet", "Service", "NetworkPolicy"} <= {each["kind"] for each in objects}, path
    else:
        print("   skipped: there is no kubectl")
    if shutil.which("systemd-analyze"):
        for path in glob.glob(f"{folder}/systemd/**/*.service", recursive=True):
            unit = pathlib.Path(path)
            unit.write_text(unit.read_text().replace("/usr/bin/winnow", winnow))
        for target in glob.glob(f"{folder}/systemd/**/*.target", recursive=True):
            run("systemd-analyze", "verify", target, *glob.glob(f"{os.path.dirname(target)}/*.service"))
    else:
        print("   skipped: there is no systemd-analyze")


FREE_PORTS = ["--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--metrics=127.0.0.1:0"]


def serves(path):
    cluster = Cluster(winnow, "-f", path, *FREE_PORTS)
    addresses = cluster.ready()
    answers(addresses["http"])
    for metrics in addresses["metrics"].split(","):
        assert get(metrics, "/ready")["status"] == "ready"
        assert get(metrics, "/live")["status"] == "live"
    for victim in cluster.children():
        os.kill(victim, signal.SIGKILL)
        wait_until("another process", lambda: len(cluster.children()) == len(addresses["metrics"].split(",")) and
                   victim not in cluster.children(), otherwise=cluster.text)
        wait_until("the router is ready", lambda: status(addresses["http"], "/ready") == "200", otherwise=cluster.text)
        answers(addresses["http"])
    left = cluster.children()
    cluster.stop()
    assert not any(os.path.exists(f"/proc/{process}") for process in left)


def drains():
    cluster = Cluster(winnow, "-f", "deploy/cpu.yaml", *FREE_PORTS, "--drain-delay=4s")
    http = cluster.ready()["http"]
    assert status(http, "/ready") == "200"
    cluster.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 3
    while status(http, "/ready") != "503":
        assert time.monotonic() < end, "ready after SIGTERM"
    answers(http)
    assert cluster.process.wait(60) == 0, cluster.text()


def nodes_serve_together():
    """The three nodes on this machine, which has all of 127.0.0.0/8."""
    with open("deploy/three-nodes.yaml") as file:
        manifest = yaml.safe_load(file)
    for number, node in enumerate(manifest["nodes"].values()):
        node["address"] = f"127.77.0.{number + 1}"
    manifest["router"] = {"http": "127.77.0.1:0", "grpc": "127.77.0.1:18801"}
    manifest["observability"] = {"metrics": "127.0.0.1:0"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(manifest, file, sort_keys=False)
        file.flush()
        store, head, compute = [Cluster(winnow, "-f", file.name, "--node", name) for name in ("store", "head", "compute")]
        http = head.ready()["http"]
        compute.ready()
        store.ready()
        assert get(http, "/ready")["status"] == "ready"
        answers(http)
        names = {rank["rank"]: rank["address"].split(":")[0] for rank in get(http, "/ranks")["ranks"]}
        assert names == {"inference-0": "127.77.0.2", "cache-0": "127.77.0.3", "cache-1": "127.77.0.3"}, names
        # One rank dies and comes back.
        os.kill(store.children()[0], signal.SIGKILL)
        answers(http)
        for cluster in (head, compute, store):
            cluster.stop()


step("every manifest is right, and fits the schema")
run(winnow, "config", "check", *manifests)
fits_schema()
step("docs/deploy.md lists the fields that there are")
with open("docs/deploy.md") as file:
    assert file.read().endswith(run(winnow, "config", "fields")), "`winnow config fields` prints another table"
with tempfile.TemporaryDirectory() as rendered:
    step("what is rendered of them is committed: `./run render` writes it anew")
    rendered_is_committed(rendered)
    step("and accepted by the tools that it is for")
    rendered_is_accepted(rendered)
for manifest in ("deploy/cpu.yaml", "deploy/prefill-decode.yaml"):
    step(f"{manifest} serves, outlives the end of each process, and leaves nothing")
    serves(manifest)
step("after SIGTERM /ready is 503 at once, and requests are served through the drain delay")
drains()
step("deploy/three-nodes.yaml serves, and outlives the end of a rank")
nodes_serve_together()
print("passed")
