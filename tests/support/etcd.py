"""A real etcd of one member, for tests of what finds others in a registry."""

import base64
import json
import pathlib
import urllib.request

from processes import free_port
from waiting import wait_until

ETCD = "/usr/bin/etcd"  # Debian's etcd-server


def is_installed():
    return pathlib.Path(ETCD).exists()


class Etcd:
    """What is in it is below the prefix "test"."""

    def __init__(self, processes, folder):
        self.processes, self.data = processes, pathlib.Path(folder) / "data"
        self.address, self.peers = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self.url = f"etcd://{self.address}/test"
        self.start()

    def start(self):
        clients = f"http://{self.address}"
        self.process = self.processes.start("etcd", [
            ETCD, "--name=one", f"--data-dir={self.data}", f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}", f"--listen-peer-urls={self.peers}",
            f"--initial-advertise-peer-urls={self.peers}", f"--initial-cluster=one={self.peers}"])
        wait_until("etcd answers", self.answers, 180)

    def open(self, request):
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20)

    def answers(self):
        try:
            return self.open(f"http://{self.address}/health").status == 200
        except OSError:
            return False

    def records(self):
        """What is published, by key behind the cluster's name."""
        def text(part):
            return base64.b64encode(part.encode()).decode()
        body = json.dumps({"key": text("test/"), "range_end": text("test0")}).encode()
        with self.open(urllib.request.Request(f"http://{self.address}/v3/kv/range", data=body)) as reply:
            entries = json.load(reply).get("kvs", [])
        return {base64.b64decode(entry["key"]).decode().removeprefix("test/local/"):
                json.loads(base64.b64decode(entry["value"])) for entry in entries}
