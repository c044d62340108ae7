"""Debian's Slurm with the plugin, in namespaces of its own, on simulated GPUs."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import waiting

HERE = Path(__file__).parent
PYVGPU = Path(sys.executable).parent / "pyvgpu"
USER = 65534
SHARDS = 8  # of each GPU
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
PrologFlags=Contain
SchedulerParameters=batch_sched_delay=0
NodeName={host} NodeAddr=10.77.0.1 CPUs=32 Gres=gpu:2,shard:16 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES
"""
GRES_CONF = """\
Name=gpu File={folder}/nvidia0
Name=gpu File={folder}/nvidia1
Name=shard Count=8 File={folder}/nvidia0
Name=shard Count=8 File={folder}/nvidia1
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Slurm:
    """A running Slurm of one node."""

    folder: Path  # that all users may write to
    init: int  # pid of the first process in its namespaces

    def command(self, *command: object, user: int = USER) -> list[str]:
        """Return the command line that runs *command* in the namespaces, as *user*."""
        enter = ["nsenter", f"--target={self.init}", "--net", "--mount", "--ipc", "--pid"]
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        return [*enter, f"--wd={self.folder}", *drop, *map(str, command)]

    def run(self, *command: object, user: int = USER, **variables: str):
        """Run *command* to its end, such as srun with its options."""
        return subprocess.run(
            self.command(*command, user=user),
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=waiting.WHOLE,
        )

    def started(self, *command: object):
        """Start *command* with pipes for its standard streams."""
        return subprocess.Popen(
            self.command(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def batch(self, script: str, *options: str) -> tuple[str, str]:
        """Run *script* as a batch job to its end; return its state and its output."""
        output = self.folder / "batch.out"
        output.unlink(missing_ok=True)
        file = self.folder / "batch.sh"
        file.write_text(f"#!/bin/sh\n{script}")
        ran = self.run("sbatch", "--parsable", f"--output={output}", *options, file)
        assert ran.returncode == 0, ran.stderr
        job = ran.stdout.strip()
        waiting.wait_until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        return self.state(job), output.read_text() if output.exists() else ""

    def state(self, job: str) -> str:
        """Return the state of *job*, such as RUNNING."""
        shown = self.run("scontrol", "show", "job", job).stdout
        found = re.search(r"JobState=(\w+)", shown)
        assert found, shown
        return found[1]

    def root(self, path: str) -> Path:
        """Return *path* as the namespaces see it."""
        return Path(f"/proc/{self.init}/root{path}")

    def exists(self, path: str) -> bool:
        """Return whether there is a file at *path* in the namespaces."""
        return self.root(path).exists()

    def runs(self) -> list[str]:
        """Return the names of the jobs that have a quota."""
        ran = self.run(PYVGPU, "ps", user=0)
        assert ran.returncode == 0, ran.stderr
        return re.findall(r"\bslurm-\d+", ran.stdout)

    def is_clean(self) -> bool:
        """Return whether no job has left anything behind."""
        left = [
            *self.root("/run/pyvgpu").glob("[0-9a-f]" * 16),
            *self.root("/var/cache/pyvgpu/runs").glob("*"),
            *self.root("/run/pyvgpu-slurm").glob("[0-9]*"),
        ]
        return not left


@pytest.fixture(scope="session")
def slurm():
    """Start Slurm; end all of its processes at the end."""
    for program in ("slurmctld", "slurmd", "munged", "srun"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"needs {program} (Debian: apt-get install slurmctld slurmd libslurm-dev)")
    with tempfile.TemporaryDirectory(prefix="pyvgpu-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        for minor in range(2):
            os.mknod(folder / f"nvidia{minor}", 0o20666, os.makedev(195, minor))
        machines = folder / "machines"
        machines.mkdir()
        machines.chmod(0o1777)
        host = os.uname().nodename.split(".")[0]
        (folder / "slurm.conf").write_text(SLURM_CONF.format(host=host, folder=folder))
        (folder / "gres.conf").write_text(GRES_CONF.format(folder=folder))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        built = subprocess.run(
            [PYVGPU, "slurm-plugin", "--output", folder / "plugin"],
            check=True,
            capture_output=True,
            text=True,
        )
        (folder / "plugstack.conf").write_text(f"{built.stdout.strip()} simulate=h100:2\n")
        unshare = ["unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--mount-proc"]
        with subprocess.Popen(
            [*unshare, "--kill-child", "sh", HERE / "cluster.sh", folder],
            env={
                **os.environ,
                "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
                "PYVGPU_SIMULATED_MACHINES": str(machines),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                said = process.stdout.readline()
                assert said == "up\n", said + process.stdout.read()
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                yield Slurm(folder, int(children.split()[0]))
            finally:
                process.stdin.close()
                process.kill()


@pytest.fixture(scope="session")
def probe(slurm):
    """Return tests/run/probe.c as a program that every user may run."""
    program = slurm.folder / "probe"
    source = HERE.parent / "run" / "probe.c"
    subprocess.run(["gcc", source, "-o", program, "-ldl"], check=True)
    return program
