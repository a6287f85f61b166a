"""Child processes of a test, which end with it."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import tempfile


_given = set()


def free_port():
    """A port that nobody uses and that was not given out before, below those that the kernel gives to connections."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    def __init__(self, command, environment=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent,
                                        env=os.environ | (environment or {}))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def text(self):
        self.log.seek(0)
        return self.log.read()


class Processes:
    def __init__(self):
        self.started = []

    def __enter__(self):
        return self

    def start(self, name, command, environment=None):
        """`environment`: variables beside those of this process."""
        self.started.append((name, Process([str(part) for part in command], environment)))
        return self.started[-1][1]

    def __exit__(self, failure, *_):
        for name, process in reversed(self.started):
            process.kill()
            if failure is not None:
                print(f"== {name}\n{process.text()[-3000:]}")
