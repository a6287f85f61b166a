"""podman with storage, networks and an image of its own, all of it gone afterwards."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from serving import run, skip, step

CONFIGURATION = """
[containers]
# Not above the limits of this process, which may not raise them.
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
[network]
network_config_dir = "{folder}/networks"
"""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class Podman:
    def __init__(self, source, *programs):
        for program in ("podman", "runc", *programs):
            if os.geteuid() != 0 or not shutil.which(program):
                skip(f"there is no {program}, or this is not root")
        if not os.path.exists(f"{source}/out/bundle/bin/winnow"):
            skip("there is no bundle: `./run deploy-test` makes it")
        self.source = source
        self.folder = tempfile.mkdtemp(prefix="winnow-podman-", dir="/var/tmp")
        for name, text in (("containers.conf", CONFIGURATION), ("storage.conf", STORAGE)):
            pathlib.Path(self.folder, name).write_text(text.format(folder=self.folder))
        # Checks of health are run by systemd's timers, which there may not be: tests run them.
        os.environ.update(CONTAINERS_CONF=f"{self.folder}/containers.conf", DISABLE_HC_SYSTEMD="true",
                          CONTAINERS_STORAGE_CONF=f"{self.folder}/storage.conf")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["podman", "pod", "rm", "--all", "--force", "--time=0"], capture_output=True)
        subprocess.run(["podman", "rm", "--all", "--force", "--time=0"], capture_output=True)
        subprocess.run(["podman", "network", "prune", "--force"], capture_output=True)
        subprocess.run(["podman", "system", "reset", "--force"], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def build_image(self):
        """deploy/image of the bundle. The base is $WINNOW_BASE (a tar file of a root file system), or made by debootstrap,
        as there may be no registry."""
        step("the image is built")
        base = os.environ.get("WINNOW_BASE")
        if not base:
            root = f"{self.folder}/base"
            base = f"{root}.tar"
            run("debootstrap", "--variant=minbase", "bookworm", root, "http://deb.debian.org/debian", timeout=900)
            run("tar", "-C", root, "-cf", base, ".")
            shutil.rmtree(root)
        run("podman", "import", base, "localhost/debian:12-slim")
        run("podman", "build", "--format=docker", "--network=host", "--build-arg=BASE=localhost/debian:12-slim",
            "--build-arg=BUNDLE=out/bundle", "--tag=winnow:latest", "--file=deploy/image/Containerfile", ".",
            cwd=self.source, timeout=900)
        labels = json.loads(run("podman", "image", "inspect", "--format", "{{json .Labels}}", "winnow:latest"))
        assert labels["org.opencontainers.image.base.name"] == "localhost/debian:12-slim", labels

    def containers(self):
        """Name and main process of what runs."""
        lines = run("podman", "ps", "--format", "{{.Names}} {{.Pid}}").splitlines()
        return {name: int(process) for name, process in (line.split() for line in lines)}

    def logs(self):
        text = ""
        for name in run("podman", "ps", "--all", "--format", "{{.Names}}").split():
            done = subprocess.run(["podman", "logs", "--tail=15", name], capture_output=True, text=True)
            text += f"\n{name}: {done.stdout}{done.stderr}"
        return text
