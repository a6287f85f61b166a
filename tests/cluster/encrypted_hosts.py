#!/usr/bin/env python3
"""What somebody sees who listens between two hosts, which are network namespaces: with TLS neither prompts, nor tokens,
nor names of ranks; without it all of them, so that the listener is known to hear.

usage: encrypted_hosts.py WINNOW MODEL. Ends with 77 where network namespaces are not allowed.
"""

import json
import os
import subprocess
import sys
import tempfile

from network import Network, wait_until

winnow, model = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ROUTER, RANKS, CLIENT = "10.77.0.1", "10.77.0.2", "10.77.0.3"
SECRET = "The code of nerita is 271828."
IDS = [1000, 1007, 1014, 1021, 1028, 1035, 1042, 1049]

# Prints, at the end of its input, which of the words (hexadecimal, in its arguments) it has heard on any interface.
LISTENER = """
import select, socket, sys
words = {word: bytes.fromhex(word) for word in sys.argv[1:]}
heard, tail = set(), b""
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as everything:
    everything.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    print("listens", flush=True)
    while True:
        ready = select.select([everything, sys.stdin], [], [], 60)[0]
        if everything in ready:
            packet = everything.recv(1 << 17)
            heard |= {word for word, text in words.items() if text in packet}
        elif sys.stdin in ready:
            break
print(*heard, flush=True)
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


def heard(network, security, http_security, scheme, curl):
    """Which of the words a listener on the router's host hears while a request is served."""
    words = {"prompt text": SECRET.encode(), "token ids": b"".join(map(varint, IDS)), "a rank's name": b"inference-0"}
    router, ranks, client = network.hosts[-3:]
    listener = subprocess.Popen(
        ["ip", "netns", "exec", router.namespace, "python3", "-c", LISTENER, *(word.hex() for word in words.values())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert listener.stdout.readline() == "listens\n"
    processes = [
        router.start("router", winnow, "router", f"--model={model}", "--budget=256", f"--http={ROUTER}:8000",
                     f"--grpc={ROUTER}:8001", f"--metrics={ROUTER}:9100", *security, *http_security),
        ranks.start("cache-0", winnow, "cache-rank", f"--router={ROUTER}:8001", "--memory=256MiB", "--threads=1",
                    *security),
        ranks.start("inference-0", winnow, "inference-rank", f"--router={ROUTER}:8001", f"--model={model}",
                    "--device=cpu", "--budget=256", "--max-context=4096", "--max-running=4", "--threads=1", *security),
    ]
    wait_until("the router is ready", lambda: client.get(f"http://{ROUTER}:9100/ready")[0] == 200)
    for prompt in (SECRET, IDS):
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "ignore_eos": True})
        done = client.run("curl", "-sS", "--fail", *curl, f"{scheme}://{ROUTER}:8000/v1/completions", "-d", body)
        assert done.returncode == 0 and '"completion_tokens":4' in done.stdout, (done.stdout, done.stderr)
    for process in reversed(processes):
        assert process.stop() == 0, process.text()
    found = listener.communicate("", timeout=60)[0].split()
    return {name for name, word in words.items() if word.hex() in found}


with tempfile.TemporaryDirectory() as folder, Network() as network:
    certificates(folder)
    for name, address in (("router", ROUTER), ("ranks", RANKS), ("client", CLIENT)):
        network.host(name, address)
    step("without TLS a listener hears everything")
    open_words = heard(network, ["--insecure"], [], "http", [])
    assert open_words == {"prompt text", "token ids", "a rank's name"}, open_words
    step("with TLS nothing of it")
    tls = [f"--tls-cert={folder}/{{role}}.crt", f"--tls-key={folder}/{{role}}.key", f"--tls-ca={folder}/ca.crt"]
    https = [f"--http-tls-cert={folder}/router.crt", f"--http-tls-key={folder}/router.key"]
    tls_words = heard(network, tls, https, "https", ["--cacert", f"{folder}/ca.crt"])
    assert tls_words == set(), tls_words
print("passed")
