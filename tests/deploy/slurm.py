#!/usr/bin/env python3
"""The batch script that `winnow deploy render slurm` writes, run by a real Slurm: four nodes, which are network namespaces.

usage: slurm.py WINNOW SOURCE_DIR. Ends with 77 where Slurm or network namespaces are missing.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from serving import Client, command_line, finishes, processes_of, run, skip, step, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from network import Network

winnow, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
for program in ("munged", "slurmctld", "slurmd", "sbatch"):
    if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
        skip(f"there is no {program}")
os.environ["PATH"] += ":/usr/sbin"
NODES = {"node1": "10.77.0.1", "node2": "10.77.0.2", "node3": "10.77.0.3", "node4": "10.77.0.4"}
CONTROLLER = "10.77.0.9"


def configuration(folder):
    host = socket.gethostname().split(".")[0]
    nodes = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr={address} Port=6818 CPUs=2 RealMemory=4000"
                      for name, address in NODES.items())
    return f"""ClusterName=test
SlurmctldHost={host}({CONTROLLER})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
KillWait=20
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and four nodes on hosts of a network."""

    def __init__(self, network, folder):
        self.folder = pathlib.Path(folder)
        # slurmd and the jobs' shells leave the folder as it is, whoever they are.
        os.chmod(folder, 0o755)
        (self.folder / "slurm.conf").write_text(configuration(folder))
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        os.chmod(self.folder / "munge.key", 0o600)
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        os.environ["SLURM_CONF"] = f"{folder}/slurm.conf"
        self.controller = network.host("controller", CONTROLLER)
        self.hosts = {node: network.host(node, address) for node, address in NODES.items()}
        self.controller.start("munged", "munged", "--foreground", f"--key-file={folder}/munge.key", "--force",
                              f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
                              f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed")
        wait_until("munge answers", lambda: (self.folder / "munge.socket").exists())
        self.slurmctld = self.controller.start("slurmctld", "slurmctld", "-D", "-c", "-f", f"{folder}/slurm.conf")
        for node, host in self.hosts.items():
            # Namespaces of "ip" hide the control groups, which slurmd looks for.
            host.start(node, "nsenter", f"--mount=/proc/{os.getpid()}/ns/mnt", "slurmd", "-D", "-N", node, "-f", f"{folder}/slurm.conf")
        wait_until("four nodes are idle",
                   lambda: self.command("sinfo", "-h", "-o", "%t %D", check=False).strip() == "idle 4",
                   otherwise=lambda: "\n".join(process.text() for host in network.hosts for process in host.processes))

    def command(self, *command, check=True):
        done = self.controller.run(*command)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def jobs(self):
        return self.command("squeue", "-h", "-o", "%i %T").splitlines()

    def submit(self, script, output):
        return self.command("sbatch", "--parsable", f"--output={output}", f"--export=ALL,WINNOW={winnow}", script).strip()


    def end(self):
        """Leaves nothing of a test that failed: steps go on without their daemons."""
        self.command("scancel", "--user=root", check=False)
        with contextlib.suppress(AssertionError):
            wait_until("no job", lambda: not self.jobs(), limit_s=30)
        for host in self.hosts.values():
            for process in run("ip", "netns", "pids", host.namespace).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)


def script_of(folder, model, routers):
    """deploy/cpu.yaml with the model where it lies here, and so many routers, rendered."""
    manifest = pathlib.Path(source, "deploy/cpu.yaml").read_text()
    manifest = manifest.replace("model_path: /var/lib/winnow/models/demo", f"model_path: {model}")
    manifest = manifest.replace("deploy:\n", f"router:\n  count: {routers}\n  stop_grace: 15s\ndeploy:\n")
    pathlib.Path(folder, "cpu.yaml").write_text(manifest)
    run(winnow, "deploy", "render", "slurm", f"{folder}/cpu.yaml", "--out", folder)
    return f"{folder}/winnow.sbatch"


def rank_process(command):
    """The process of the rank with that subcommand; None where there is none."""
    found = [process for process in processes_of(winnow) if command in command_line(process)]
    return found[0] if found else None


def client_at(slurm, address):
    return Client(winnow, f"{address}:8000", f"{address}:8001", ["ip", "netns", "exec", slurm.controller.namespace])


def starts(slurm, folder, name, routers=1):
    output = f"{folder}/{name}.out"
    job = slurm.submit(script_of(folder, f"{source}/deploy/models/demo", routers), output)

    def text():
        return pathlib.Path(output).read_text() if os.path.exists(output) else str(slurm.jobs())

    client = client_at(slurm, NODES["node1"])
    client.wait_ready(otherwise=text)
    return job, client, text


def is_gone(slurm, text):
    wait_until("the job is gone", lambda: not slurm.jobs(), otherwise=lambda: f"{slurm.jobs()} {text()}")
    wait_until("its processes are gone", lambda: not processes_of(winnow), otherwise=text)


# A copy, so that processes of this test are told from others'.
with tempfile.TemporaryDirectory(prefix="winnow-slurm-") as folder:
    shutil.copy(winnow, f"{folder}/winnow")
    winnow = f"{folder}/winnow"
    with Network() as network, contextlib.ExitStack() as stack:
        slurm = Slurm(network, folder)
        stack.callback(slurm.end)

        step("sbatch brings a cluster up, each part on a node, which answers over HTTP and gRPC")
        job, client, text = starts(slurm, folder, "first")
        client.answers()
        assert {rank["address"].split(":")[0] for rank in client.ranks().values()} == {NODES["node2"], NODES["node3"]}
        assert f"http://{NODES['node1']}:8000" in text()
        for node, port in (("node1", 9100), ("node2", 9101), ("node3", 9102)):
            assert client.get("/ready", address=f"{NODES[node]}:{port}")[0] == 200, node

        for command in ("cache-rank", "inference-rank", "router"):
            step(f"a killed {command} is started again")
            victim = rank_process(command)
            os.kill(victim, signal.SIGKILL)
            wait_until("another process of it", lambda: rank_process(command) not in (None, victim), otherwise=text)
            client.wait_ready(otherwise=text)
            client.answers()

        step("a stop in order finishes the answers under way, and leaves nothing")
        stream = client.begins(tokens=60)
        slurm.command("scancel", "--batch", "--signal=USR1", job)
        wait_until("/ready is not 200", lambda: not client.is_ready(), limit_s=20, otherwise=lambda: text())
        finishes(stream)
        is_gone(slurm, text)

        step("two routers have a node each, and both serve")
        job, client, text = starts(slurm, folder, "second", routers=2)
        routers = re.findall(r"^http://(\S+):8000$", text(), re.MULTILINE)
        assert len(set(routers)) == 2, text()
        for address in routers:
            client_at(slurm, address).wait_ready(otherwise=text)
            client_at(slurm, address).answers()

        step("scancel ends all of it at once, and leaves nothing")
        slurm.command("scancel", job)
        is_gone(slurm, text)
print("passed")
