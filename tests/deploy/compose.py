#!/usr/bin/env python3
"""The image of deploy/image, and the compose file that `winnow deploy render compose` writes, run by podman-compose.

usage: compose.py WINNOW SOURCE_DIR. Ends with 77 where podman or the bundle is missing.
"""

import os
import pathlib
import signal
import sys

from podman import Podman
from serving import Client, finishes, run, step, wait_until

winnow, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])


def file_of(folder):
    """deploy/cpu.yaml with the model where it lies here, and ports of its own."""
    manifest = pathlib.Path(source, "deploy/cpu.yaml").read_text()
    manifest = manifest.replace("/var/lib/winnow/models/demo", f"{source}/deploy/models/demo")
    manifest += "router:\n  http: 127.0.0.1:18710\n  grpc: 127.0.0.1:18711\n  stop_grace: 15s\n"
    pathlib.Path(folder, "cpu.yaml").write_text(manifest)
    run(winnow, "deploy", "render", "compose", f"{folder}/cpu.yaml", "--out", folder)
    return f"{folder}/compose.yaml"


with Podman(source, "podman-compose") as podman:
    podman.build_image()
    compose = ["podman-compose", "--file", file_of(podman.folder)]
    client = Client(winnow, "127.0.0.1:18710", "127.0.0.1:18711")

    step("up brings a cluster up, which answers over HTTP and gRPC")
    run(*compose, "up", "--detach")
    client.wait_ready(otherwise=podman.logs)
    client.answers()
    containers = podman.containers()
    assert len(containers) == 3, containers

    step("every container is healthy, not root, and cannot write")
    for name in containers:
        run("podman", "healthcheck", "run", name)
        done = run("podman", "inspect", "--format", "{{.Config.User}} {{.HostConfig.ReadonlyRootfs}}", name)
        assert done.split() == ["65532:65532", "true"], done

    for name, process in containers.items():
        step(f"{name} is started again when it is killed")
        os.kill(process, signal.SIGKILL)
        wait_until("another process", lambda: podman.containers().get(name) not in (None, 0, process), otherwise=podman.logs)
        client.wait_ready(otherwise=podman.logs)
        client.answers()

    step("a router that is stopped finishes the answers under way")
    stream = client.begins(tokens=20)
    run("podman", "stop", next(name for name in containers if "router" in name))
    finishes(stream)

    step("down leaves nothing")
    run(*compose, "down")
    assert not run("podman", "ps", "--all", "--quiet")
print("passed")
