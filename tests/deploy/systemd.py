#!/usr/bin/env python3
"""The units that `winnow deploy render systemd` writes: verified, scored, and started by a systemd of their own, which runs
in a container over the root file system of this machine and leaves it as it is.

usage: systemd.py WINNOW SOURCE_DIR. Ends with 77 where systemd's tools are missing.
"""

import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from serving import Client, finishes, processes_of, run, skip, step, wait_until

winnow, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
# Mounts are this test's own, and go with it.
if os.environ.get("WINNOW_OWN_MOUNTS") != "1":
    if os.geteuid() != 0 or not shutil.which("systemd-nspawn") or not shutil.which("systemd-analyze"):
        skip("there is no systemd-nspawn (package systemd-container), or this is not root")
    os.environ["WINNOW_OWN_MOUNTS"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])

UNITS = f"{source}/deploy/systemd/cpu"
# systemd's scale of exposure: 0 is least, 10 most. Units with a GPU see all devices.
MOST_EXPOSED = {False: 2.0, True: 3.5}


def units_of(folder):
    return [path for path in glob.glob(f"{folder}/**/*", recursive=True) if path.endswith((".service", ".target"))]


def verified(folder):
    """The same units with a program that is here."""
    for path in units_of(source + "/deploy/systemd"):
        copy = pathlib.Path(folder, os.path.relpath(path, source))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(pathlib.Path(path).read_text().replace("/usr/bin/winnow", winnow))
    for target in glob.glob(f"{folder}/**/*.target", recursive=True):
        done = subprocess.run(["systemd-analyze", "verify", *units_of(os.path.dirname(target))], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr


def scored(folder):
    for path in units_of(folder):
        if path.endswith(".service"):
            line = run("systemd-analyze", "security", "--offline=yes", "--no-pager", path).splitlines()[-1]
            score = float(re.search(r"([0-9.]+) \w+", line).group(1))
            assert score <= MOST_EXPOSED["PrivateDevices=yes" not in pathlib.Path(path).read_text()], (path, line)
            print(f"   {os.path.relpath(path, folder + '/deploy/systemd')}: {score}")


class Machine:
    """A container with systemd, and the units in /etc/systemd/system."""

    def __init__(self, folder):
        root = f"{folder}/root"
        os.mkdir(root)
        run("mount", "--bind", "/", root)
        bound = {winnow: "/usr/bin/winnow", f"{source}/deploy/models/demo": "/var/lib/winnow/models/demo"}
        for path in os.listdir(UNITS):
            bound[f"{UNITS}/{path}"] = f"/etc/systemd/system/{path}"
        self.log = open(f"{folder}/log", "w+")
        # Nothing that this machine's own systemd would start.
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", "--volatile=overlay", "--private-network", "--keep-unit",
             "--register=no", "--console=pipe", "--link-journal=no", f"--machine=winnow-{os.getpid()}",
             *(f"--bind-ro={here}:{there}" for here, there in bound.items()), "--boot", "systemd.unit=basic.target"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.init = None
        wait_until("systemd runs", self.runs, otherwise=self.text)

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def runs(self):
        assert self.process.poll() is None, self.text()
        child = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        # systemd-nspawn may have one process between itself and systemd.
        while child and "systemd-nspawn" in pathlib.Path(f"/proc/{child[0]}/comm").read_text():
            child = pathlib.Path(f"/proc/{child[0]}/task/{child[0]}/children").read_text().split()
        self.init = child[0] if child else None
        return self.init and self.systemctl("is-system-running", check=False).strip() in ("running", "degraded")

    def inside(self):
        return ["nsenter", f"--target={self.init}", "--all"]

    def systemctl(self, *arguments, check=True):
        command = [*self.inside(), "systemctl", *arguments]
        if check:
            return run(*command)
        return subprocess.run(command, capture_output=True, text=True).stdout

    def journal(self):
        return subprocess.run([*self.inside(), "journalctl", "--no-pager", "-n", "60"], capture_output=True, text=True).stdout

    def end(self):
        if self.init and self.process.poll() is None:
            os.kill(int(self.init), signal.SIGRTMIN + 4)  # power off
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(30)


def serves(machine):
    client = Client(winnow, "127.0.0.1:8000", "127.0.0.1:8001", ["nsenter", f"--target={machine.init}", "--net"])
    step("systemctl start brings a cluster up, which answers over HTTP and gRPC")
    machine.systemctl("start", "winnow.target")
    client.wait_ready(otherwise=machine.journal)
    client.answers()
    for port in (9100, 9101, 9102):
        assert client.get("/ready", address=f"127.0.0.1:{port}")[0] == 200, machine.journal()

    for unit in ("winnow-cache@0", "winnow-inference@0", "winnow-router"):
        step(f"{unit} is started again when it is killed")
        machine.systemctl("kill", "--signal=KILL", unit)
        wait_until("another start", lambda: "NRestarts=1\n" == machine.systemctl("show", "-p", "NRestarts", unit))
        client.wait_ready(otherwise=machine.journal)
        client.answers()

    step("another rank is another instance")
    machine.systemctl("start", "winnow-cache@1")
    wait_until("cache-1 is known", lambda: "cache-1" in (client.ranks() or {}), otherwise=machine.journal)
    machine.systemctl("stop", "winnow-cache@1")

    step("systemctl stop ends the router before the ranks, which finish the answers under way, and leaves nothing")
    stream = client.begins(tokens=8)
    machine.systemctl("stop", "winnow.target")
    finishes(stream)
    wait_until("nothing runs any more", lambda: not processes_of(winnow), otherwise=machine.journal)
    left = machine.systemctl("list-units", "--plain", "--no-legend", "--state=failed", "winnow*")
    assert not left, left
    stops = re.findall(r"Stopped (winnow-\w+)", machine.journal())
    assert stops[-3] == "winnow-router", machine.journal()


with tempfile.TemporaryDirectory(prefix="winnow-systemd-") as folder:
    # A copy, so that processes of this test are told from others'.
    winnow = shutil.copy(winnow, f"{folder}/winnow")
    step("systemd-analyze accepts every unit")
    verified(folder)
    step("how exposed units are, of 10")
    scored(folder)
    try:
        machine = Machine(folder)
        serves(machine)
    finally:
        machine.end()
        run("umount", f"{folder}/root")
print("passed")
