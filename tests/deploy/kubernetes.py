#!/usr/bin/env python3
"""The manifests that `winnow deploy render kubernetes` writes: checked by the public schemas, and run by `podman kube play`.

podman takes Pods, and not all that they say. What this test leaves out of the manifests, and looks at otherwise:
- the set of a Deployment or a StatefulSet: each of its pods is a Pod of the name that it would have (a Deployment's: its own);
- services, policies, and the namespace: pods find each other by name on one network;
- probes, which podman asks by curl in the container: the test asks for them;
- the names of ports, which podman would publish on this machine;
- /dev/shm, as podman's pods have one;
- the pod's address in the environment: ranks advertise the address towards the router, which is the same.
usage: kubernetes.py WINNOW SOURCE_DIR. Ends with 77 where podman, the bundle or python3-yaml is missing.
"""

import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from podman import Podman
from serving import Client, finishes, run, skip, step, wait_until

try:
    import yaml
except ImportError:
    skip("there is no python3-yaml")

winnow, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SCHEMAS = ["kubernetes-models@5.1.0", "@kubernetes-models/prometheus-operator@6.0.0"]


def objects_of(folder):
    return list(yaml.safe_load_all(run("kubectl", "kustomize", folder)))


def fits_schemas(folder):
    if not shutil.which("npm") or subprocess.run(
            ["npm", "install", "--no-save", "--prefix", folder, *SCHEMAS], capture_output=True).returncode != 0:
        return print("   skipped: npm, or its registry, is missing")
    shutil.copy(f"{source}/tests/deploy/kubernetes_schemas.mjs", folder)
    overlays = [*sorted(glob.glob(f"{source}/deploy/kubernetes/*")), f"{source}/deploy/prometheus/kubernetes"]
    for overlay in overlays:
        objects = objects_of(overlay)
        lines = "\n".join(map(json.dumps, objects))
        done = subprocess.run(["node", "kubernetes_schemas.mjs"], cwd=folder, input=lines, capture_output=True, text=True)
        assert done.returncode == 0, (overlay, done.stdout, done.stderr)
        print(f"   {os.path.relpath(overlay, source)}: {len(objects)} objects")
        # The schemas do see what is wrong.
        objects[0]["metadata"] = "winnow"
        done = subprocess.run(["node", "kubernetes_schemas.mjs"], cwd=folder, input=json.dumps(objects[0]),
                              capture_output=True, text=True)
        assert done.returncode == 1, done.stdout


def rules_are_those_of_prometheus():
    rule = yaml.safe_load(pathlib.Path(source, "deploy/prometheus/kubernetes/prometheus-rule.yaml").read_text())
    groups = []
    for name in ("records", "alerts"):
        groups += yaml.safe_load(pathlib.Path(source, f"deploy/prometheus/winnow-{name}.yaml").read_text())["groups"]
    assert rule["spec"]["groups"] == groups, "`./run render` writes it anew"


def pods_of(objects):
    pods = []
    for each in objects:
        if each["kind"] not in ("Deployment", "StatefulSet"):
            continue
        for number in range(each["spec"]["replicas"]):
            name = each["metadata"]["name"]
            pod = {"apiVersion": "v1", "kind": "Pod", **each["spec"]["template"]}
            pod["metadata"]["name"] = f"{name}-{number}" if each["kind"] == "StatefulSet" else name
            for container in pod["spec"]["containers"]:
                container["imagePullPolicy"] = "Never"
                container["env"] = [{"name": "WINNOW_RANK", "value": pod["metadata"]["name"]}]
                del container["ports"]
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    assert container.pop(probe)["httpGet"]["port"] == "metrics"
                container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "shm"]
            pod["spec"]["volumes"] = [each for each in pod["spec"]["volumes"] if each["name"] != "shm"]
            pods.append(json.loads(json.dumps(pod)))
    return pods


def play_file(folder):
    """deploy/cpu.yaml with the model where it lies here, rendered."""
    manifest = pathlib.Path(source, "deploy/cpu.yaml").read_text()
    pathlib.Path(folder, "cpu.yaml").write_text(
        manifest.replace("/var/lib/winnow/models/demo", f"{source}/deploy/models/demo"))
    run(winnow, "deploy", "render", "kubernetes", f"{folder}/cpu.yaml", "--out", f"{folder}/rendered")
    path = pathlib.Path(folder, "pods.yaml")
    path.write_text(yaml.safe_dump_all(pods_of(objects_of(f"{folder}/rendered"))))
    return path


def address_of(container):
    text = run("podman", "inspect", "--format", "{{json .NetworkSettings.Networks}}", container)
    return json.loads(text)["winnow"]["IPAddress"]


with Podman(source, "kubectl") as podman:
    step("rules and monitors of the Prometheus operator are those of Prometheus")
    rules_are_those_of_prometheus()
    step("what is rendered fits the schemas of Kubernetes")
    fits_schemas(podman.folder)
    podman.build_image()

    step("kube play brings a cluster up, which answers over HTTP and gRPC")
    run("podman", "network", "create", "winnow")
    pods = play_file(podman.folder)
    run("podman", "kube", "play", "--network=winnow", pods)
    infras = run("podman", "pod", "ps", "--format", "{{.Name}} {{.InfraId}}").splitlines()
    addresses = {name: address_of(infra) for name, infra in (line.split() for line in infras)}
    assert set(addresses) == {"winnow-router", "inference-0", "cache-0"}, addresses
    router = addresses["winnow-router"]
    client = Client(winnow, f"{router}:8000", f"{router}:8001")
    client.wait_ready(otherwise=podman.logs)
    client.answers()

    def probes():
        for name, address in addresses.items():
            for path in ("/health", "/ready", "/live"):
                status, text = client.get(path, address=f"{address}:9100")
                assert status == 200, (name, path, text)

    step("every pod answers its probes, is not root, and cannot write")
    probes()
    containers = {name: process for name, process in podman.containers().items() if not name.endswith("-infra")}
    for name in containers:
        done = run("podman", "inspect", "--format", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}", name)
        assert re.fullmatch(r"65532(:65532)? true\n", done), done

    for name, process in containers.items():
        step(f"{name} is started again when it is killed")
        os.kill(process, signal.SIGKILL)
        wait_until("another process", lambda: podman.containers().get(name) not in (None, 0, process), otherwise=podman.logs)
        client.wait_ready(otherwise=podman.logs)
        client.answers()
        probes()

    step("SIGTERM makes the router unready at once, and it finishes the answers under way")
    stream = client.begins(tokens=20)
    name = next(name for name in containers if "router" in name)
    stopping = subprocess.Popen(["podman", "stop", "--time=77", name], stdout=subprocess.DEVNULL)
    wait_until("/ready is not 200", lambda: not client.is_ready(), limit_s=4)
    finishes(stream)
    assert stopping.wait(90) == 0

    step("kube down leaves nothing")
    run("podman", "kube", "down", pods)
    assert not run("podman", "ps", "--all", "--quiet")
print("passed")
