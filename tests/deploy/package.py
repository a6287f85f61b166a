#!/usr/bin/env python3
"""The packages that `./run package` makes: in a Debian 12 of their own, without a compiler, each is installed as a user does and
answers a question.

usage: package.py WINNOW SOURCE_DIR. The packages are those in SOURCE_DIR/out. The system is $WINNOW_BASE (a tar file of a root
file system), or made by debootstrap. Ends with 77 where that, or root, is missing.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile

from serving import run, skip, step

source = os.path.abspath(sys.argv[2])
# Mounts are this test's own, and go with it.
if os.environ.get("WINNOW_OWN_MOUNTS") != "1":
    if os.geteuid() != 0 or not (shutil.which("debootstrap") or os.environ.get("WINNOW_BASE")):
        skip("there is no debootstrap, or this is not root")
    os.environ["WINNOW_OWN_MOUNTS"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])

MIRROR = "http://deb.debian.org/debian"
# Starts a cluster, asks it, and ends it.
ASK = """
set -e
mkfifo /tmp/ready
{winnow} up --model {model} --budget 256 >/tmp/ready 2>/tmp/log &
up=$!
read -r line </tmp/ready || {{ cat /tmp/log; exit 1; }}
grpc=${{line##*grpc=}}
{winnow} demo --server "${{grpc%% *}}" --once
kill $up
wait $up || true
"""


class System:
    """A clean Debian 12 in a folder."""

    def __init__(self, folder, base):
        self.root = folder
        os.mkdir(folder)
        run("tar", "-C", folder, "-xf", base)
        for name in ("proc", "dev", "sys"):
            os.makedirs(f"{folder}/{name}", exist_ok=True)
            run("mount", "--rbind", f"/{name}", f"{folder}/{name}")
        shutil.copy("/etc/resolv.conf", f"{folder}/etc/resolv.conf")
        assert not any(os.path.exists(f"{folder}/usr/bin/{name}") for name in ("cc", "gcc", "g++", "clang", "cmake"))

    def run(self, command):
        return run("chroot", self.root, "/bin/bash", "-c", command, timeout=900,
                   env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})

    def remove(self):
        for name in ("proc", "dev", "sys"):
            subprocess.run(["umount", "--lazy", f"{self.root}/{name}"], check=True)
        shutil.rmtree(self.root)


def only(pattern):
    found = glob.glob(f"{source}/out/{pattern}")
    assert len(found) == 1, f"there is not one {pattern} in out/: {found}; `./run package` makes it"
    return found[0]


def answers(system, winnow, model, copyright):
    step("it answers")
    print(system.run(ASK.format(winnow=winnow, model=model)))
    notice = open(system.root + copyright).read()
    assert "Apache License" in notice and "nlohmann" in notice, "licences are missing"


with tempfile.TemporaryDirectory() as folder:
    base = os.environ.get("WINNOW_BASE")
    if not base:
        step("a clean Debian 12 is made")
        base = f"{folder}/base.tar"
        run("debootstrap", "--variant=minbase", "bookworm", f"{folder}/base", MIRROR, timeout=900)
        run("tar", "-C", f"{folder}/base", "-cf", base, ".")
        shutil.rmtree(f"{folder}/base")

    step("the .tgz is unpacked")
    system = System(f"{folder}/tgz", base)
    run("tar", "-C", f"{system.root}/opt", "-xzf", only("winnow_*.tgz"))
    unpacked = "/opt/" + os.listdir(f"{system.root}/opt")[0]
    answers(system, f"{unpacked}/bin/winnow", f"{unpacked}/share/winnow/models/demo", f"{unpacked}/share/doc/winnow/copyright")
    system.remove()

    step("the .deb is installed")
    system = System(f"{folder}/deb", base)
    shutil.copy(only("winnow_*.deb"), f"{system.root}/tmp/winnow.deb")
    system.run("apt-get update -qq && apt-get install -y -qq --no-install-recommends /tmp/winnow.deb")
    answers(system, "winnow", "/usr/share/winnow/models/demo", "/usr/share/doc/winnow/copyright")
    system.run("apt-get purge -y -qq winnow && ! test -e /usr/bin/winnow && ! test -e /usr/share/winnow")
    system.remove()
print("ok")
