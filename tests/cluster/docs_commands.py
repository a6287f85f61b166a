#!/usr/bin/env python3
"""Runs the commands of a page as they stand there, on hosts that are network namespaces.

A block of commands says behind "sh" on which machine it runs, and what is looked at: ", until WORD" for one that goes
on, which is waited for until WORD is in its output, and ", prints WORD" for one whose output must have it. What goes on is
stopped where the next section ("## ") begins. Blocks that name no machine are for readers alone.
usage: docs_commands.py WINNOW SOURCE_DIR PAGE. Ends with 77 where network namespaces are not allowed.
"""

import os
import re
import shutil
import sys

from network import Network, wait_until

winnow, source, page = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
os.chdir(source)
ADDRESSES = {"machine": "10.77.0.9", "head": "10.77.0.1", "compute": "10.77.0.2", "store": "10.77.0.3"}

with open(page) as file:
    document = file.read()
BLOCK = re.compile(r"^```sh (\w+)(?:, until (\w+))?(?:, prints ([^\n]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
assert BLOCK.search(document), f"{page} has lost its commands"

# Every command, however it is called: a page may name the program by its path in a build.
bin_folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"winnow-docs-{os.getpid()}")
os.makedirs(bin_folder)
os.symlink(winnow, f"{bin_folder}/winnow")
prefix = f"export PATH={bin_folder}:$PATH no_proxy='*'; cd '{source}'; set -euo pipefail\n"


def wait_for(process, word):
    wait_until(f"{word} in the output of {process.name}",
               lambda: re.search(rf"\b{word}\b", process.text()) or process.process.poll() is not None,
               otherwise=process.text)
    assert process.process.poll() is None, process.text()


def run_section(network, section):
    hosts, waiting = {}, []
    for machine, until, printed, commands in BLOCK.findall(section):
        if machine not in hosts:
            hosts[machine] = network.host(machine, ADDRESSES[machine])
        commands = commands.replace("build/release/cmd/winnow", "winnow")
        print(f"-- {machine}: {commands.strip()}", flush=True)
        if until:
            waiting.append((hosts[machine].start(machine, "bash", "-c", prefix + "exec " + commands), until))
            continue
        for process, word in waiting:
            wait_for(process, word)
        waiting = []
        done = hosts[machine].run("bash", "-c", prefix + commands, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not printed or printed in done.stdout, f"{printed} is not in: {done.stdout}{done.stderr}"
    for process, word in waiting:
        wait_for(process, word)


try:
    for section in re.split(r"^(?=## )", document, flags=re.MULTILINE):
        if BLOCK.search(section):
            with Network() as network:
                run_section(network, section)
finally:
    shutil.rmtree(bin_folder)
    for left in set(re.findall(r"/tmp/winnow-[\w.-]+\b", document)):
        shutil.rmtree(left) if os.path.isdir(left) else os.path.exists(left) and os.unlink(left)
print("passed")
