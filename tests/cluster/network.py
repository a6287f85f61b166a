"""Network namespaces as hosts: a bridge between them, a process in each."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from waiting import wait_until  # for those who import this

SKIPPED = 77  # what ctest takes for "skipped"


class Host:
    """A network namespace with one address, and what runs in it."""

    def __init__(self, network, name, addresses):
        self.network, self.name = network, name
        self.namespace = f"{network.prefix}-{name}"
        self.address = addresses[0]
        self.processes = []

    def run(self, *command, timeout=60):
        done = subprocess.run(["ip", "netns", "exec", self.namespace, *map(str, command)], capture_output=True, text=True,
                              timeout=timeout)
        return done

    def start(self, name, *command):
        process = Running(self, name, command)
        self.processes.append(process)
        return process

    def get(self, url, body=None):
        """Status and body of an HTTP request from this host."""
        code = ("import sys,urllib.request,urllib.error\n"
                "body=sys.argv[2].encode() or None\n"
                "try:\n r=urllib.request.build_opener(urllib.request.ProxyHandler({})).open("
                "urllib.request.Request(sys.argv[1],data=body),timeout=60)\n"
                "except urllib.error.HTTPError as e: r=e\n"
                "except OSError as e: print(0); print(e); sys.exit()\n"
                "print(r.status if hasattr(r,'status') else r.code); print(r.read().decode())")
        out = self.run("python3", "-c", code, url, body or "", timeout=90).stdout
        status, _, text = out.partition("\n")
        return int(status or 0), text.strip()


class Running:
    def __init__(self, host, name, command):
        self.name, self.log = name, tempfile.NamedTemporaryFile("w+", prefix=f"{name}-", suffix=".log", delete=False)
        self.process = subprocess.Popen(["ip", "netns", "exec", host.namespace, *map(str, command)],
                                        stdout=self.log, stderr=self.log, start_new_session=True)

    def text(self):
        with open(self.log.name) as file:
            return file.read()

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self.process.returncode


class Network:
    """Hosts on one bridge, which is in a namespace of its own; cables can be cut."""

    def __init__(self):
        self.prefix = f"winnow{os.getpid()}"
        self.hosts = []
        self.bridge = f"{self.prefix}-switch"

    def __enter__(self):
        try:
            ip("netns", "add", self.bridge)
            ip("-n", self.bridge, "link", "add", "switch", "type", "bridge")
            ip("-n", self.bridge, "link", "set", "switch", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            print(f"skipped: network namespaces are not allowed here ({error})")
            raise SystemExit(SKIPPED)
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            for process in host.processes:
                process.stop()
        for namespace in [host.namespace for host in self.hosts] + [self.bridge]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        for host in self.hosts:
            for process in host.processes:
                with contextlib.suppress(OSError):
                    os.unlink(process.log.name)

    def host(self, name, address):
        host = Host(self, name, [address])
        self.hosts.append(host)
        ip("netns", "add", host.namespace)
        ip("-n", host.namespace, "link", "set", "lo", "up")
        ip("-n", host.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self.bridge)
        ip("-n", host.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", host.namespace, "link", "set", "eth0", "up")
        ip("-n", self.bridge, "link", "set", name, "master", "switch", "up")
        return host

    def isolate(self, *hosts):
        """These hosts reach all others and not each other."""
        for host in hosts:
            ip("-n", self.bridge, "link", "set", host.name, "type", "bridge_slave", "isolated", "on")

    def join(self, *hosts):
        for host in hosts:
            ip("-n", self.bridge, "link", "set", host.name, "type", "bridge_slave", "isolated", "off")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
