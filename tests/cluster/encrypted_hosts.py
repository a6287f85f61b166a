#!/usr/bin/env python3
"""What somebody sees who listens between hosts, which are network namespaces: with TLS neither prompts, nor tokens, nor
names of ranks, nor rows of KV; without it all of them, so that the listener is known to hear.

usage: encrypted_hosts.py WINNOW MODEL. Ends with 77 where network namespaces are not allowed.
"""

import json
import os
import subprocess
import sys
import tempfile

from network import Network, wait_until

winnow, model = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ROUTER, INFERENCE, CACHE, CLIENT = "10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.4"
SECRET = "The code of nerita is 271828."
IDS = [1000, 1007, 1014, 1021, 1028, 1035, 1042, 1049]
REPEATED = [1000] * 96  # the values of one token in the first layer are the same at all positions
ROW_BYTES = 32

# Prints, at the end of its input, which of the words (hexadecimal, in its arguments) it has heard on any interface, and
# then what was repeated most often: how often, and the bytes.
LISTENER = """
import collections, select, socket, sys
row_bytes, words = int(sys.argv[1]), {word: bytes.fromhex(word) for word in sys.argv[2:]}
heard, rows = set(), collections.Counter()
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as everything:
    everything.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    print("listens", flush=True)
    while True:
        ready = select.select([everything, sys.stdin], [], [], 60)[0]
        if everything in ready:
            packet = everything.recv(1 << 17)
            heard |= {word for word, text in words.items() if text in packet}
            pieces = (packet[i:i + row_bytes] for i in range(0, len(packet) - row_bytes, 8))
            rows.update(piece for piece in pieces if len(set(piece)) > row_bytes // 2)
        elif sys.stdin in ready:
            break
print(*heard)
row, times = rows.most_common(1)[0]
print(times, row.hex(), flush=True)
"""


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def step(text):
    print(f"-- {text}", flush=True)


def certificates(folder):
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()

    def make(*arguments):
        subprocess.run([*new, *arguments], check=True, capture_output=True, cwd=folder)

    make("-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    for role in ("router", "inference-rank", "cache-rank"):
        names = f"subjectAltName=URI:spiffe://winnow/{role},IP:{ROUTER}"
        make("-CA", "ca.crt", "-CAkey", "ca.key", "-subj", f"/CN={role}", "-addext", names, "-addext",
             "basicConstraints=CA:FALSE", "-keyout", f"{role}.key", "-out", f"{role}.crt")


def own_host(name, *command):
    """A command that believes its machine to be another one than the others', and reaches it by TCP alone."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name, "env", "UCX_TLS=tcp,self", *command]


class Listener:
    def __init__(self, host, words):
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, "python3", "-c", LISTENER, str(ROW_BYTES), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "listens\n"

    def stop(self):
        """Words that it heard; how often it heard what it heard most often, and what that is."""
        heard, most_often = self.process.communicate("", timeout=60)[0].splitlines()
        times, row = most_often.split()
        return set(heard.split()), int(times), row


def listen(network, row, security=("--insecure",), http_security=(), scheme="http", curl=()):
    """Which of the words listeners hear while requests are served, what they hear most often, and the ranks' logs."""
    words = {"prompt text": SECRET.encode().hex(), "token ids": b"".join(map(varint, IDS)).hex(),
             "a rank's name": b"inference-0".hex(), "rows of KV": row}
    router, inference, cache, client = network.hosts[-4:]
    listeners = [Listener(host, words.values()) for host in (router, cache)]
    processes = [
        router.start("router", winnow, "router", f"--model={model}", "--budget=256", f"--http={ROUTER}:8000",
                     f"--grpc={ROUTER}:8001", f"--metrics={ROUTER}:9100",
                     *(flag for flag in security if "data-plane" not in flag), *http_security),
        cache.start("cache-0", *own_host("cache", winnow, "cache-rank", f"--router={ROUTER}:8001", "--memory=256MiB",
                                         f"--metrics={CACHE}:9100", "--threads=1", *security)),
        inference.start("inference-0", *own_host(
            "inference", winnow, "inference-rank", f"--router={ROUTER}:8001", f"--model={model}", "--device=cpu",
            "--transport=ucx", "--budget=256", "--max-context=4096", "--max-running=4", "--threads=1", *security)),
    ]
    wait_until("the router is ready", lambda: client.get(f"http://{ROUTER}:9100/ready")[0] == 200)
    for prompt in (SECRET, IDS, REPEATED):
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "ignore_eos": True})
        done = client.run("curl", "-sS", "--fail", *curl, f"{scheme}://{ROUTER}:8000/v1/completions", "-d", body)
        assert done.returncode == 0 and '"completion_tokens":4' in done.stdout, (done.stdout, done.stderr)
    metrics = client.get(f"http://{CACHE}:9100/metrics")[1]
    for process in reversed(processes):
        assert process.stop() == 0, process.text()
    heard_by_all = [listener.stop() for listener in listeners]
    heard = {name for name, word in words.items() if any(word in words_heard for words_heard, _, _ in heard_by_all)}
    times, most_often = max(each[1:] for each in heard_by_all)
    return heard, times, most_often, metrics


def links(metrics, protection):
    for line in metrics.splitlines():
        if line.startswith("winnow_data_plane_links_total{") and f'protection="{protection}"' in line:
            return int(float(line.split()[-1]))
    raise AssertionError(f"no count of {protection} links in\n{metrics}")


with tempfile.TemporaryDirectory() as folder, Network() as network:
    certificates(folder)
    for name, address in (("router", ROUTER), ("inference", INFERENCE), ("cache", CACHE), ("client", CLIENT)):
        network.host(name, address)
    everything = {"prompt text", "token ids", "a rank's name", "rows of KV"}
    step("what is said most often of a prompt of one token: a row")
    _, times, row, metrics = listen(network, "00" * ROW_BYTES)
    assert times > len(REPEATED) // 2, (times, row)
    assert links(metrics, "plain") == 1 and links(metrics, "encrypted") == 0, metrics
    step("without TLS a listener hears everything")
    heard, _, _, _ = listen(network, row)
    assert heard == everything, heard
    tls = [f"--tls-cert={folder}/{{role}}.crt", f"--tls-key={folder}/{{role}}.key", f"--tls-ca={folder}/ca.crt"]
    https = [f"--http-tls-cert={folder}/router.crt", f"--http-tls-key={folder}/router.key"]
    with_tls = {"http_security": https, "scheme": "https", "curl": ["--cacert", f"{folder}/ca.crt"]}
    step("with TLS nothing of it")
    heard, _, _, metrics = listen(network, row, tls, **with_tls)
    assert heard == set(), heard
    assert links(metrics, "plain") == 0 and links(metrics, "encrypted") == 1, metrics
    step("with TLS and a data plane that is not encrypted, rows alone")
    heard, _, _, metrics = listen(network, row, [*tls, "--data-plane=authenticated"], **with_tls)
    assert heard == {"rows of KV"}, heard
    assert links(metrics, "authenticated") == 1, metrics
print("passed")
