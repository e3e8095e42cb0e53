"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd of the tests' own, in a temporary folder.

The node has GPUs that are none: Slurm gives each job a device file and a number in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.needed_programs import require
from tests.support.patience import wait_until

PROGRAMS = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm"}
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])  # which only root's has
# Slurm wants the file of a GPU to be a device, and these are on every machine.
DEVICES = ("/dev/null", "/dev/zero")
NODE = "node"
MUNGE_FILES = ("socket", "key-file", "pid-file", "log-file", "seed-file")
# The processes of a job are found by their parents and bound by affinity: neither needs a cgroup, which a container may
# not make.
CONFIGURATION = """
ClusterName=gpugate
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
KillWait=5
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/ended
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:{gpus}
PartitionName=all Nodes={node} Default=YES State=UP
"""
_ENDED = re.compile(r"^JobId=(\d+) .* JobState=(\w+) .* ExitCode=(\d+):(\d+)")
_TASK = re.compile(r" ArrayJobId=(\d+) ArrayTaskId=(\d+)")


@dataclass(frozen=True)
class EndedJob:
    """The last state of a job, in Slurm's words, with its exit status and the signal that ended it, or 0."""

    state: str
    status: int
    signal: int = 0


class Cluster:
    """A running cluster, and the variables by which Slurm's commands find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *words: object, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> str:
        """The output of one of Slurm's commands, which must end with 0."""
        command, variables = [str(word) for word in words], {**self.variables, **(more or {})}
        ended = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
        return ended.stdout.strip()

    def submit(self, *words: object, cwd: Path, **more: str) -> str:
        """Submits a job from the folder `cwd`, with more variables, and returns its id."""
        return self.call("sbatch", "--parsable", *words, cwd=cwd, more=more)

    def read_ended(self) -> dict[str, EndedJob]:
        """The jobs that began and ended, by their ids: `17`, or `17_2` for a task of an array."""
        log = self.folder / "ended"
        text, found = log.read_text(encoding="utf-8") if log.exists() else "", {}
        for line in text.rpartition("\n")[0].splitlines():  # the last line may be incomplete
            ended, task = _ENDED.match(line), _TASK.search(line)
            assert ended, line
            name = "_".join(task.groups()) if task else ended[1]
            found[name] = EndedJob(ended[2], int(ended[3]), int(ended[4]))
        return found

    def wait_for(self, job: str, seconds: float) -> EndedJob:
        """The last state of a job, once it has ended."""
        wait_until(lambda: job in self.read_ended(), seconds)
        return self.read_ended()[job]


def find(program: str) -> str | None:
    return shutil.which(program, path=PATH)


def name_missing() -> str | None:
    """One sentence about what a test with Slurm lacks on this machine; None where it has all."""
    packages = dict.fromkeys(package for program, package in PROGRAMS.items() if find(program) is None)
    if packages:
        missing = ", ".join(program for program in PROGRAMS if find(program) is None)
        return f"Slurm is missing ({missing}): apt-get install {' '.join(packages)}"
    return None


def require_slurm() -> None:
    """Skips the test with the reason, or fails it in CI, where the machine lacks what it needs."""
    require(name_missing())


@contextmanager
def start_slurm(cores: int = 2) -> Iterator[Cluster]:
    """A cluster of one node with these cores and two GPUs. Nothing of it runs any longer afterwards, jobs included.

    The folder is none of pytest's, since the path of a unix socket has 107 characters at most.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpugate-slurm-"))
    cluster = Cluster(folder)
    try:
        _configure(folder, cores)
        munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in MUNGE_FILES]
        with ExitStack() as daemons:
            daemons.enter_context(_run(cluster, "munged", "--foreground", *munge))
            wait_until((folder / "munge.socket").exists)
            daemons.enter_context(_run(cluster, "slurmctld", "-D"))
            daemons.enter_context(_run(cluster, "slurmd", "-D", "-N", NODE))
            wait_until(lambda: "idle" in _ask(cluster, "sinfo", "--noheader", "--format=%T"))
            yield cluster
            cluster.call("scancel", "--user", str(os.getuid()))
            wait_until(lambda: not _ask(cluster, "squeue", "--noheader"))
        wait_until(lambda: not find_processes(folder))  # slurmstepd outlives the last step of its job for a moment
    finally:
        for pid in find_processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, cores: int) -> None:
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    folder.chmod(0o755)  # or munged refuses to make its socket there
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"controller_port": one.getsockname()[1], "node_port": other.getsockname()[1]}
    words = {"host": socket.gethostname().partition(".")[0], "user": pwd.getpwuid(os.getuid()).pw_name, "node": NODE}
    text = CONFIGURATION.format(folder=folder, cores=cores, gpus=len(DEVICES), **words, **ports)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    gpus = "".join(f"NodeName={NODE} Name=gpu File={device}\n" for device in DEVICES)
    (folder / "gres.conf").write_text(gpus, encoding="utf-8")
    # slurmd loads the plugin in any case; that of version 2 would ask systemd for a scope at once.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")


@contextmanager
def _run(cluster: Cluster, name: str, *words: str) -> Iterator[None]:
    """A daemon that ends with SIGTERM, also when this process dies; its output is the error where it ended earlier."""
    log = cluster.folder / f"{name}.out"
    with log.open("wb") as output:
        command = ["setpriv", "--pdeathsig=TERM", str(find(name)), *words]
        daemon = subprocess.Popen(command, env=cluster.variables, cwd="/", stdout=output, stderr=output)
    try:
        yield
        assert daemon.poll() is None, log.read_text(errors="replace")
    finally:
        daemon.terminate()
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _ask(cluster: Cluster, *words: str) -> str:
    """The output of a command; an empty one, or an error, while the controller is not ready."""
    return subprocess.run(words, env=cluster.variables, capture_output=True, text=True, check=False).stdout


def find_processes(folder: Path) -> list[int]:
    """The processes of a cluster and of its jobs: all that have a variable with its folder."""
    found = []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            if os.fsencode(folder) in variables.read_bytes():
                found.append(int(variables.parent.name))
    return found
