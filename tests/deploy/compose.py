#!/usr/bin/env python3
"""The image of deploy/image, and the compose file that `winnow deploy render compose` writes, run by podman-compose.

usage: compose.py WINNOW SOURCE_DIR. Ends with 77 where podman or the bundle is missing.
"""

import os
import pathlib
import signal
import subprocess
import sys

from certificates import CONTAINER_USER, ROLES, Certificates
from podman import Podman
from serving import Client, finishes, run, step, wait_until

winnow, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])


def rendered(folder, router, security="  insecure: true\n"):
    """The compose file of deploy/cpu.yaml with the model where it lies here, and routers with ports of their own."""
    manifest = pathlib.Path(source, "deploy/cpu.yaml").read_text()
    manifest = manifest.replace("/var/lib/winnow/models/demo", f"{source}/deploy/models/demo")
    lines = manifest.splitlines(keepends=True)
    assert any("insecure: true" in line for line in lines)
    manifest = "".join(security if "insecure: true" in line else line for line in lines)
    manifest += f"router: {{http: '127.0.0.1:18710', grpc: '127.0.0.1:18711', stop_grace: 15s, {router}}}\n"
    os.makedirs(folder, exist_ok=True)
    pathlib.Path(folder, "cpu.yaml").write_text(manifest)
    run(winnow, "deploy", "render", "compose", f"{folder}/cpu.yaml", "--out", folder)
    return ["podman-compose", "--file", f"{folder}/compose.yaml"]


def serial_shown(address):
    """Of the certificate that a server shows."""
    shown = subprocess.run(["openssl", "s_client", "-connect", address], stdin=subprocess.DEVNULL, capture_output=True)
    return run("openssl", "x509", "-noout", "-serial", input=shown.stdout.decode()).strip()


def is_secured(podman):
    """With TLS, API keys, and files of both that containers see change."""
    folder = f"{podman.folder}/secured"
    certificates = Certificates(f"{folder}/tls", f"{folder}/authority")
    os.mkdir(f"{folder}/keys")
    key = run(winnow, "keys", "add", f"{folder}/keys/keys.yaml", "--name=chat").split()[-1]
    os.chown(f"{folder}/keys/keys.yaml", CONTAINER_USER, CONTAINER_USER)
    own = f"{folder}/tls/{{role}}"
    security = (f"  tls_cert: '{own}/tls.crt'\n  tls_key: '{own}/tls.key'\n  tls_ca: '{own}/ca.crt'\n"
                f"  http_tls_cert: {folder}/tls/router/tls.crt\n  http_tls_key: {folder}/tls/router/tls.key\n")
    compose = rendered(folder, f"api_keys: {folder}/keys/keys.yaml", security)
    client = Client(winnow, "127.0.0.1:18710", "127.0.0.1:18711", authority=certificates.authority, key=key)

    step("with TLS and API keys it answers those who have one")
    run(*compose, "up", "--detach")
    client.wait_ready(otherwise=podman.logs)
    client.answers()
    status, text = Client(winnow, client.http, client.grpc, authority=certificates.authority).get("/ranks")
    assert status == 401, (status, text)

    step("a role has its own key alone")
    for name in podman.containers():
        mounts = run("podman", "inspect", "--format", "{{range .Mounts}}{{.Destination}} {{end}}", name)
        keys = [role for role in ROLES if f"{folder}/tls/{role}" in mounts.split()]
        assert keys == [role for role in ROLES if role.split("-")[0] in name], (name, mounts)

    step("a certificate that is replaced is shown without a restart")
    serial = certificates.issue("router")
    wait_until("the new certificate", lambda: serial_shown(client.http) == serial, 30)
    client.answers()
    run(*compose, "down")


with Podman(source, "podman-compose") as podman:
    podman.build_image()
    compose = rendered(f"{podman.folder}/plain", "count: 2")
    client = Client(winnow, "127.0.0.1:18710", "127.0.0.1:18711")
    other_client = Client(winnow, "127.0.0.1:18720", "127.0.0.1:18721")

    step("up brings a cluster up, which answers over HTTP and gRPC at both routers")
    run(*compose, "up", "--detach")
    for each in (client, other_client):
        each.wait_ready(otherwise=podman.logs)
        each.answers()
    containers = podman.containers()
    assert len(containers) == 4, containers

    step("ranks may take what the plan adds up to, and routers anything")
    for name in containers:
        limit = int(run("podman", "inspect", "--format", "{{.HostConfig.Memory}}", name))
        planned_mib = 0 if "router" in name else 1024 if "cache" in name else 350
        assert limit == 0 if planned_mib == 0 else limit > planned_mib * 1.125 * 2**20, (name, limit)

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
    run("podman", "stop", next(name for name in containers if "router-0" in name or "router_0" in name))
    finishes(stream)
    other_client.answers()

    run(*compose, "down")

    is_secured(podman)

    step("down leaves nothing")
    assert not run("podman", "ps", "--all", "--quiet")
print("passed")
