#!/usr/bin/env python3
"""Runs the commands of docs/deploy.md as they stand there, on hosts that are network namespaces.

A block of commands says after "sh" on which machine it runs, and whether it goes on: until a line with that word is in
its output. usage: deploy_docs.py WINNOW SOURCE_DIR. Ends with 77 where network namespaces are not allowed.
"""

import os
import re
import shutil
import sys

from network import Network, wait_until

winnow, source = os.path.abspath(sys.argv[1]), sys.argv[2]
os.chdir(source)
ADDRESSES = {"machine": "10.77.0.9", "head": "10.77.0.1", "compute": "10.77.0.2", "store": "10.77.0.3"}

with open("docs/deploy.md") as file:
    document = file.read()
blocks = re.findall(r"^```sh (\w+)(?:, until (\w+))?\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
assert len(blocks) >= 8, "docs/deploy.md has lost its commands"

# Every command, however it is called.
bin_folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"winnow-docs-{os.getpid()}")
os.makedirs(bin_folder)
os.symlink(winnow, f"{bin_folder}/winnow")
prefix = f"export PATH={bin_folder}:$PATH no_proxy='*'; cd '{source}'; set -euo pipefail\n"
try:
    with Network() as network:
        hosts = {name: network.host(name, address) for name, address in ADDRESSES.items()}
        waiting = []
        for machine, until, commands in blocks:
            print(f"-- {machine}: {commands.strip()}", flush=True)
            if until:
                process = hosts[machine].start(machine, "bash", "-c", prefix + "exec " + commands)
                waiting.append((process, until))
                continue
            for process, word in waiting:
                wait_until(f"{word} in the output of {process.name}",
                           lambda: re.search(rf"\b{word}\b", process.text()) or process.process.poll() is not None)
                assert process.process.poll() is None, process.text()
            waiting = []
            done = hosts[machine].run("bash", "-c", prefix + commands, timeout=180)
            assert done.returncode == 0, done.stdout + done.stderr
        for process, word in waiting:
            wait_until(f"{word} in the output of {process.name}", lambda: re.search(rf"\b{word}\b", process.text()))
        ranks = hosts["head"].get("http://10.77.0.1:8000/ranks")[1]
        assert '"cache-9"' in ranks and '"inference-0"' in ranks, ranks
finally:
    shutil.rmtree(bin_folder)
    for left in set(re.findall(r"/tmp/winnow-[\w.-]+\b", document)):
        shutil.rmtree(left) if os.path.isdir(left) else os.path.exists(left) and os.unlink(left)
print("passed")
