"""The recipe of examples/deploy, and the commands of its pages, on a real Slurm of four hosts.

tests/slurm/cluster.sh starts it in namespaces. The jobs belong to a user without privileges.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import elastic
import pytest

from support.paths import ROOT
from support.waiting import eventually

RECIPE = ROOT / "examples/deploy/slurm.sbatch"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "srun")
USER_ID = 4242
NODES = 4
DEADLINE_S = 120.0

# Writes its place in each round, and works until the job stops at an agreed step, or a file exists.
# A rank fails after a file of its name was written.
SCRIPT = """\
import itertools, os, pathlib, threading
from elastic import worker
out = pathlib.Path(os.environ["OUT"])
run = os.environ.get("SLURM_RESTART_COUNT", "0")
names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME")
place = out / f"run{run}-round{os.environ['ELASTIC_ROUND']}-rank{os.environ['RANK']}"
place.write_text(" ".join(os.environ[name] for name in names))
for step in itertools.count():
    threading.Event().wait(0.02)
    if (out / f"fail-{os.environ['RANK']}").exists():
        os._exit(3)
    if worker.should_stop(step) or (out / "finish").exists():
        break
"""


@functools.cache
def why_not() -> str:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0:
        return "needs root"
    if missing:
        return f"needs Slurm (Debian: slurm-wlm slurmdbd munge mariadb-server): no {missing[0]}"
    if not os.path.isdir("/sys/fs/cgroup/freezer"):
        return "proctrack/cgroup of this Slurm needs the freezer of cgroup v1"
    probe = ["setpriv", "--reuid", str(USER_ID), "--regid", str(USER_ID), "--clear-groups"]
    if subprocess.run([*probe, "test", "-r", elastic.__file__], check=False).returncode:
        return f"the user of the jobs cannot read {elastic.__file__}"
    return ""


pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(600)]


class Finished(NamedTuple):
    state: str
    code: str


class Cluster:
    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._numbers = itertools.count()
        programs = shared / "bin"
        programs.mkdir()
        for name, module in {"elastic-launch": "elastic", "python": ""}.items():
            path = programs / name
            words = f"-m {module} " if module else ""
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            path.chmod(0o755)
        (shared / "train.py").write_text(SCRIPT)
        self._environ = os.environ | {"SHARED": str(shared), "PYTHON_PATH": str(programs)}

    def command(self, *words: str, check: bool = True, timeout_s: float = DEADLINE_S) -> str:
        done = subprocess.run(
            ["bash", str(ROOT / "tests/slurm/cluster.sh"), *words],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout
        return done.stdout

    def user(self, *words: str, check: bool = True) -> str:
        return self.command("as", "ctl", *words, check=check)

    @contextmanager
    def crashed(self, host: str) -> Iterator[None]:
        """All processes of the host end at once, and its connections vanish."""
        self.command("crash", host)
        try:
            yield
        finally:
            self.command("boot", host)

    def is_free(self) -> bool:
        return len(self.user("sinfo", "-hN", "-p", "main", "-t", "idle").split("\n")) == NODES + 1

    def submit(self, recipe: str, *options: str) -> Job:
        directory = Path(
            self._shared, "alice", f"job{len(list((self._shared / 'alice').iterdir()))}"
        )
        for path in (directory, directory / "out"):
            path.mkdir()
            os.chown(path, USER_ID, USER_ID)
        (directory / "batch").write_text(recipe)
        export = f"ALL,OUT={directory}/out,TRAIN_SCRIPT={self._shared}/train.py"
        fixed = [f"--chdir={directory}", "--parsable", f"--export={export}", "--time=10"]
        printed = self.user("sbatch", *fixed, *options, str(directory / "batch"))
        return Job(self, printed.strip(), directory)


class Job:
    def __init__(self, cluster: Cluster, number: str, directory: Path) -> None:
        self._cluster = cluster
        self.number = number
        self.directory = directory
        self.out = directory / "out"

    def wait(self, condition: Callable[[], bool]) -> None:
        try:
            eventually(condition)
        except AssertionError as error:
            raise AssertionError(f"job {self.number} is {self.queued()}:\n{self.log()}") from error

    def log(self) -> str:
        return "".join(path.read_text() for path in self.directory.glob("slurm-*.out"))

    def places(self, run: int = 0, round_number: int = 0) -> list[str]:
        """Of each rank: its rank, the world size, its host."""
        found = self.out.glob(f"run{run}-round{round_number}-rank*")
        return [path.read_text() for path in sorted(found) if path.stat().st_size]

    def hosts(self) -> list[str]:
        """The first one runs the batch script."""
        return sorted({place.split()[2] for place in self.places()})

    def result(self) -> int | None:
        """The exit code that the launchers wrote."""
        written = list(self.directory.glob("elastic-*.json"))
        return json.loads(written[0].read_text())["exit_code"] if written else None

    def runs(self, ranks: int, run: int = 0, round_number: int = 0) -> None:
        self.wait(lambda: len(self.places(run, round_number)) == ranks)

    def queued(self) -> str:
        return self._cluster.user(
            "squeue", "-h", "-o", "%T", "-j", self.number, check=False
        ).strip()

    def is_requeued(self) -> bool:
        return self.queued() == "PENDING"

    def records(self) -> list[Finished]:
        """What sacct shows of each run of the job, the oldest first."""
        rows = self._cluster.user("sacct", "-nPXD", "-o", "state,exitcode", "-j", self.number)
        return [Finished(*row.split("|")) for row in rows.split()]

    def has_ended(self) -> bool:
        return self.queued() not in ("RUNNING", "COMPLETING", "PENDING") and all(
            record.state not in ("RUNNING", "PENDING") for record in self.records()
        )

    def finish(self) -> Finished:
        (self.out / "finish").touch()
        self.wait(self.has_ended)
        return self.records()[-1]

    def launcher(self, host: str) -> str:
        pattern = rf"^{re.escape(sys.executable)} -m elastic .*{self.directory}"
        return self._cluster.command("on", host, "pgrep", "-o", "-f", pattern).strip()

    def kill_launcher(self, host: str) -> None:
        self._cluster.command("on", host, "kill", "-KILL", self.launcher(host))


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """All four hosts are free."""
    eventually(slurm.is_free)
    yield slurm
    slurm.user("scancel", "--user=alice")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    shared = tmp_path_factory.mktemp("slurm")
    for folder in (shared, *shared.parents):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    found = Cluster(shared)
    found.command("up", str(NODES))
    yield found
    found.command("down")


def recipe() -> str:
    return RECIPE.read_text()


def recipe_of_a_range(nnodes: str) -> str:
    """As docs/clusters.md has it for a job that continues with fewer nodes."""
    text = recipe().replace("--nnodes=auto", f"--nnodes={nnodes}")
    text = text.replace("srun ", "srun --no-kill ", 1)
    return text.replace("#SBATCH --requeue", "#SBATCH --requeue\n#SBATCH --no-kill")


def test_the_recipe_runs_on_all_nodes(cluster: Cluster) -> None:
    job = cluster.submit(recipe())
    job.runs(ranks=4)
    assert len(job.hosts()) == 2
    assert job.finish() == ("COMPLETED", "0:0")


def test_a_job_whose_launcher_was_killed_is_queued_again(cluster: Cluster) -> None:
    job = cluster.submit(recipe())
    job.runs(ranks=4)
    job.kill_launcher(job.hosts()[1])
    job.wait(job.is_requeued)
    assert "task 1: Killed" in job.log()  # srun returned 137
    assert job.result() == 78


def test_a_job_of_a_range_succeeds_without_the_launcher_that_was_killed(cluster: Cluster) -> None:
    job = cluster.submit(recipe_of_a_range("1:2"))
    job.runs(ranks=4)
    job.kill_launcher(job.hosts()[1])
    job.runs(ranks=2, round_number=1)
    assert job.finish() == ("COMPLETED", "0:0")
    assert "Killed" in job.log()  # srun returned 137


@pytest.mark.parametrize("which", [0, 1], ids=["batch", "other"])
def test_a_job_that_loses_a_host_is_queued_again(cluster: Cluster, which: int) -> None:
    """By Slurm, if it is the host of the batch script."""
    job = cluster.submit(recipe())
    job.runs(ranks=4)
    with cluster.crashed(job.hosts()[which]):
        job.wait(job.is_requeued)
    if which:
        assert job.result() == 78


@pytest.mark.parametrize("which", [0, 2], ids=["batch", "other"])
def test_a_job_of_a_range_continues_without_a_lost_host(cluster: Cluster, which: int) -> None:
    job = cluster.submit(recipe_of_a_range("1:3"), "--nodes=3")
    job.runs(ranks=6)
    host = job.hosts()[which]
    with cluster.crashed(host):
        job.runs(ranks=4, round_number=1)
        job.wait(lambda: "down" in cluster.user("sinfo", "-hN", "-n", host, "-o", "%T"))
        (job.out / "finish").touch()
        job.wait(lambda: job.result() == 0)
        if which:
            assert job.finish() == ("COMPLETED", "0:0")
        else:  # nothing is left in the job that could end it
            assert job.queued() == "RUNNING"


# Finds the host of one task bad, while a file has its number.
CHECK = """\
[ "$SLURM_PROCID" = "$(cat "$OUT/bad")" ] || exit 0
echo "the fan of $SLURMD_NODENAME stands"
exit 1
"""


@pytest.mark.parametrize("task", [0, 1], ids=["batch", "other"])
@pytest.mark.parametrize("when", ["join", "failure"])
def test_a_host_that_a_check_finds_bad_is_drained(cluster: Cluster, when: str, task: int) -> None:
    text = recipe().replace("--drain=50", '--drain=50 --node-check="sh $OUT/check"')
    job = cluster.submit(text.replace("c10d", "c10d --rdzv-conf=last_call_timeout=3"), "--hold")
    (job.out / "check").write_text(CHECK)
    bad = job.out / "bad"
    bad.write_text(str(task) if when == "join" else "none")
    cluster.user("scontrol", "release", job.number)
    if when == "failure":
        job.runs(ranks=4)
        bad.write_text(str(task))
        (job.out / f"fail-{2 * task}").touch()
    job.wait(lambda: "stands" in job.log() and job.is_requeued())
    drained = cluster.user("sinfo", "-hN", "-p", "main", "-t", "drain", "-o", "%N").split()
    assert len(drained) == 1, job.log()
    assert f"the fan of {drained[0]} stands" in cluster.user("scontrol", "show", "node", *drained)
    cluster.user("scancel", job.number)
    cluster.command("on", "ctl", "scontrol", "update", f"NodeName={drained[0]}", "State=RESUME")


def test_a_job_that_is_queued_again_stops_at_a_step(cluster: Cluster) -> None:
    job = cluster.submit(recipe())
    job.runs(ranks=4)
    cluster.user("scontrol", "requeue", job.number)
    job.wait(job.is_requeued)
    assert job.result() == 80, job.log()
    assert "restarting" not in job.log()


def test_commands_inside_the_allocation_show_and_drain_the_job(cluster: Cluster) -> None:
    job = cluster.submit(recipe())
    job.runs(ranks=4)
    inside = ["srun", "--overlap", f"--jobid={job.number}", "-N1", "-n1", "elastic-launch"]
    assert f"{job.number}.0" in cluster.user(*inside, "status")
    assert "every rank stops at step" in cluster.user(*inside, "drain", f"{job.number}.0")
    job.wait(job.is_requeued)


def test_a_heterogeneous_job_in_one_step_is_one_job(cluster: Cluster) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=1\n#SBATCH hetjob\n"
        "#SBATCH --nodes=2 --ntasks-per-node=1\n"
        "srun --het-group=0,1 elastic-launch --nnodes=auto --rdzv-backend=c10d "
        '--rdzv-endpoint=auto --rdzv-id=auto --log-dir="$PWD" "$TRAIN_SCRIPT"\n'
    )
    job = cluster.submit(text)
    job.runs(ranks=3)
    assert {place.split()[1] for place in job.places()} == {"3"}
    (job.out / "finish").touch()
    job.wait(lambda: job.queued() == "")
