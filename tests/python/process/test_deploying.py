"""The recipes of examples/deploy run as they are, with fake schedulers that set the variables.

Each scheduler's nodes are processes in one network namespace whose hosts file has their names.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import namespaces
import pytest
import yaml

from support.launching import DEADLINE_S, assert_all_ended, clean_environment
from support.paths import ROOT
from support.waiting import eventually

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())


RECIPES = ROOT / "examples/deploy"
NODES = 2

# Stands for the training script of the recipes: writes its place in the job, and ends, or works
# until the job stops at an agreed step.
SCRIPT = """\
import itertools, os, pathlib, sys, threading
from elastic import worker
out = pathlib.Path(os.environ["OUT"])
place = " ".join(os.environ[name] for name in ("RANK", "WORLD_SIZE", "GROUP_RANK"))
(out / ("rank" + os.environ["RANK"])).write_text(place + " " + " ".join(sys.argv[1:]))
if "WAIT" in os.environ:
    pause = threading.Event().wait
    step = next(step for step in itertools.count() if pause(0.01) or worker.should_stop(step))
    (out / ("stopped" + os.environ["RANK"])).write_text(str(step))
"""

# One task on each node, as srun in an allocation; it passes SIGTERM on.
SRUN = """\
#!/bin/bash
echo $$ >"$OUT/srun.pid"
while [[ $1 == --* ]]; do shift; done
tasks=()
trap 'kill -TERM "${tasks[@]}"' TERM
for node in 0 1; do
  SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node[1-2] \\
    SLURM_NODEID=$node SLURM_PROCID=$node "$@" &
  tasks+=($!)
done
code=0
for task in "${tasks[@]}"; do
  wait "$task"; last=$?
  while kill -0 "$task" 2>/dev/null; do wait "$task"; last=$?; done
  [ "$last" = 0 ] || code=$last
done
exit $code
"""


class Cluster(NamedTuple):
    out: Path
    directory: Path  # what the image of the recipes has as its working directory
    environ: dict[str, str]

    def start(self, hosts: str, script: str, *words: str, **more: str) -> subprocess.Popen[str]:
        """Runs a shell script in a network with these lines in its hosts file."""
        names = self.directory / "hosts"
        names.write_text(f"127.0.0.1 localhost\n{hosts}\n")
        network = f'ip link set lo up && mount --bind "{names}" /etc/hosts || exit 99\n'
        return subprocess.Popen(
            ["unshare", "--mount", "--net", "bash", "-c", network + script, "cluster", *words],
            cwd=self.directory,
            env=self.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def places(self) -> list[str]:
        return [path.read_text() for path in sorted(self.out.glob("rank*"))]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    programs = tmp_path / "bin"
    programs.mkdir()
    launcher = programs / "elastic-launch"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m elastic "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "train_digits.py").write_text(SCRIPT)
    out = tmp_path / "out"
    out.mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    environ = clean_environment(PATH=path, OUT=str(out))
    yield Cluster(out, tmp_path, environ)
    assert_all_ended(environ, deadline_s=60.0)


def assert_succeeded(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, stderr


def assert_four_ranks(cluster: Cluster, arguments: str) -> None:
    expected = [f"{rank} 4 {rank // 2} {arguments}" for rank in range(4)]
    assert cluster.places() == expected


# ---- Two bare hosts: the commands of the document.

# Writes its place and round. In round 0 it waits if it is told to, until it is stopped.
PLACES = """\
import os, pathlib, signal
names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "ELASTIC_ROUND")
path = pathlib.Path(os.environ["OUT"], "rank%02d" % int(os.environ["RANK"]))
path.write_text(" ".join(os.environ[name] for name in names))
if "WAIT" in os.environ and os.environ["ELASTIC_ROUND"] == "0":
    signal.pause()
"""


def blocks_of(heading: str) -> list[str]:
    """The code blocks below a heading of the document."""
    page = (ROOT / "docs/clusters.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


class BareHosts:
    """Two hosts with the names node0 and node1, on which the document's command is run."""

    def __init__(self, cluster: Cluster, network: namespaces.Network, command: str) -> None:
        self._cluster = cluster
        self._command = command
        self._hosts = [network.add_host() for _ in range(NODES)]
        names = [f"{host.address} node{i}\n" for i, host in enumerate(self._hosts)]
        self._names = cluster.directory / "hosts"
        self._names.write_text("127.0.0.1 localhost\n" + "".join(names))
        (cluster.directory / "train.py").write_text(PLACES)
        self.agents: list[subprocess.Popen[str]] = []

    def run(self, number: int, **more: str) -> subprocess.Popen[str]:
        script = 'mount --bind "$1" /etc/hosts && exec bash -c "$2"'
        words = ("bash", "-c", script, "host", str(self._names), self._command)
        agent = subprocess.Popen(
            self._hosts[number].command("unshare", "--mount", *words),
            cwd=self._cluster.directory,
            env=self._cluster.environ | more,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.agents.append(agent)
        return agent


@pytest.fixture
def bare_hosts(cluster: Cluster) -> Iterator[BareHosts]:
    command, unit = blocks_of("Two bare hosts")
    assert "RestartPreventExitStatus=2 72 76" in unit
    with namespaces.Network() as network:
        hosts = BareHosts(cluster, network, command)
        yield hosts
        for agent in hosts.agents:  # left by a test that failed
            agent.kill()
            agent.communicate(timeout=DEADLINE_S)


def ranks_of_round(number: int) -> list[str]:
    size, per_node = 16, 8  # --nnodes=2 --nproc-per-node=8
    return [f"{rank} {size} {rank // per_node} {number}" for rank in range(size)]


def test_two_bare_hosts_run_the_command_of_the_document_also_after_a_reboot(
    cluster: Cluster, bare_hosts: BareHosts
) -> None:
    second = bare_hosts.run(1, WAIT="1")  # node0, which hosts the coordinator, may be later
    first = bare_hosts.run(0, WAIT="1")
    eventually(lambda: sorted(cluster.places()) == sorted(ranks_of_round(0)))
    second.kill()
    _, stderr = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == -signal.SIGKILL, stderr
    again = bare_hosts.run(1, WAIT="1")
    assert_succeeded(first)
    assert_succeeded(again)
    assert sorted(cluster.places()) == sorted(ranks_of_round(1))


# ---- Slurm.


def sbatch(cluster: Cluster, srun: str = SRUN, **more: str) -> subprocess.Popen[str]:
    scontrol = '#!/bin/sh\necho "$@" >>"$OUT/scontrol"\n'
    for name, text in {"srun": srun, "scontrol": scontrol}.items():
        program = cluster.directory / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    hosts = "127.0.1.1 node1\n127.0.1.2 node2"
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": str(NODES)}
    job |= {"SLURM_JOB_NODELIST": "node[1-2]"}
    return cluster.start(hosts, 'exec bash "$1"', str(RECIPES / "slurm.sbatch"), **job, **more)


def test_slurm_job_runs_on_all_nodes(cluster: Cluster) -> None:
    assert_succeeded(sbatch(cluster))
    assert_four_ranks(cluster, "--checkpoint digits.pt")
    assert not (cluster.out / "scontrol").exists()


def test_slurm_job_passes_the_options_of_the_site_to_srun(cluster: Cluster) -> None:
    batch = sbatch(
        cluster,
        srun='#!/bin/sh\nprintf "%s\\n" "$@" >"$OUT/srun"\n',
        SRUN_OPTIONS="--auto-resume=1 --container-image=digits",
    )
    assert_succeeded(batch)
    passed = (cluster.out / "srun").read_text().split()
    assert passed[: passed.index("elastic-launch")] == [
        "--kill-on-bad-exit=0",
        "--auto-resume=1",
        "--container-image=digits",
    ]


def test_preempted_slurm_job_is_queued_again(cluster: Cluster) -> None:
    batch = sbatch(cluster, WAIT="1")
    eventually(lambda: len(cluster.places()) == 4)
    os.kill(int((cluster.out / "srun.pid").read_text()), signal.SIGTERM)
    _, stderr = batch.communicate(timeout=DEADLINE_S)
    assert batch.returncode == 80, stderr
    assert len({path.read_text() for path in cluster.out.glob("stopped?")}) == 1
    assert (cluster.out / "scontrol").read_text() == "requeue 4711\n"


def test_slurm_job_is_queued_again_after_codes_of_which_another_run_can_succeed(
    cluster: Cluster,
) -> None:
    queued = []
    for code in (0, 1, 2, 72, 75, 76, 77, 78, 79, 80, 81, 137, 143):
        batch = sbatch(cluster, srun=f"#!/bin/sh\nexit {code}\n")
        assert batch.wait(DEADLINE_S) == code
        batch.communicate()
        if (cluster.out / "scontrol").exists():
            queued.append(code)
            (cluster.out / "scontrol").unlink()
    assert queued == [75, 77, 78, 79, 80, 143]


def test_slurm_job_is_queued_again_without_its_bad_hosts(cluster: Cluster) -> None:
    bad = '{"event": "bad_host", "run_id": "4711", "host": "node2", "check": "gpu", "reason": "a"}'
    excluded = '{"event": "excluded_host", "run_id": "4711", "host": "node1.site", "reason": "c"}'
    output = f"step 1\\n{bad}\\n1: {excluded}\\nno end"
    batch = sbatch(cluster, srun=f"#!/bin/sh\nprintf '{output}'\nexit 79\n")
    stdout, stderr = batch.communicate(timeout=DEADLINE_S)
    assert batch.returncode == 79, stderr
    assert stdout == output.replace("\\n", "\n")
    assert (cluster.out / "scontrol").read_text().splitlines() == [
        f"update NodeName=node2 State=DRAIN Reason={bad}",
        f"update NodeName=node1 State=DRAIN Reason=1: {excluded}",
        "requeue 4711",
    ]


# ---- Kubernetes.


def container(pod: dict[str, Any]) -> list[str]:
    [found] = pod["spec"]["containers"]
    return found["command"]


def run_on_both(
    cluster: Cluster, hosts: str, command: list[str], *own: str, **variables: str
) -> None:
    """Runs one command as two nodes do, with these variables; ``own``: further ones of each."""
    script = """
        env $1 "${@:3}" & first=$!
        env $2 "${@:3}"; second=$?
        wait $first && exit $second
    """
    assert_succeeded(cluster.start(hosts, script, *(own or ("", "")), *command, **variables))
    assert_four_ranks(cluster, "--checkpoint=/checkpoints/digits.pt")


def run_pods(cluster: Cluster, name: str, command: list[str], domain: str) -> None:
    """One process for each index, with the variables, host name and DNS name of its pod."""
    hosts = "\n".join(f"127.0.1.{i + 1} {name}-{i}.{domain} {name}-{i}" for i in range(NODES))
    own = [f"JOB_COMPLETION_INDEX={i} HOSTNAME={name}-{i}" for i in range(NODES)]
    run_on_both(cluster, hosts, command, *own)


def test_indexed_job_runs_on_all_pods(cluster: Cluster) -> None:
    documents = list(yaml.safe_load_all((RECIPES / "kubernetes-indexed-job.yaml").read_text()))
    service, job = documents
    pod = job["spec"]["template"]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert f"--nnodes={job['spec']['completions']}" in container(pod)
    run_pods(cluster, job["metadata"]["name"], container(pod), "digits.default.svc.cluster.local")


def test_job_set_runs_on_all_pods(cluster: Cluster) -> None:
    job_set = yaml.safe_load((RECIPES / "jobset.yaml").read_text())
    [replicated] = job_set["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert f"--nnodes={spec['completions']}" in container(spec["template"])
    name = f"{job_set['metadata']['name']}-{replicated['name']}-0"  # <jobset>-<job>-<replica>
    domain = f"{job_set['spec']['network']['subdomain']}.default.svc.cluster.local"
    run_pods(cluster, name, container(spec["template"]), domain)


def test_kubeflow_train_job_runs_on_all_pods(cluster: Cluster) -> None:
    runtime, job = yaml.safe_load_all((RECIPES / "kubeflow-trainjob.yaml").read_text())
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == NODES
    first = "digits-node-0-0.digits"
    variables = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"])}
    variables |= {"PET_MASTER_ADDR": first, "PET_MASTER_PORT": "29400"}
    ranks = ("PET_NODE_RANK=0", "PET_NODE_RANK=1")
    run_on_both(cluster, f"127.0.1.1 {first}", trainer["command"], *ranks, **variables)


def test_kubeflow_pytorch_job_runs_on_all_pods(cluster: Cluster) -> None:
    job = yaml.safe_load((RECIPES / "kubeflow-pytorchjob.yaml").read_text())
    worker, policy = job["spec"]["pytorchReplicaSpecs"]["Worker"], job["spec"]["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == worker["replicas"] == NODES
    assert worker["template"]["spec"]["containers"][0]["name"] == "pytorch"
    first = f"{job['metadata']['name']}-worker-0"
    variables = {"PET_NNODES": "2:2", "PET_RDZV_BACKEND": policy["rdzvBackend"]}
    variables["PET_RDZV_ENDPOINT"] = f"{first}:23456"
    run_on_both(cluster, f"127.0.1.1 {first}", container(worker["template"]), **variables)


def test_volcano_job_runs_on_all_pods(cluster: Cluster) -> None:
    job = yaml.safe_load((RECIPES / "volcano-job.yaml").read_text())
    [task] = job["spec"]["tasks"]
    assert task["replicas"] == job["spec"]["minAvailable"] == NODES
    command = container(task["template"])
    assert f"--nnodes={NODES}" in command
    name = job["metadata"]["name"]
    run_on_both(cluster, f"127.0.1.1 {name}-{task['name']}-0.{name}", command)


def test_skypilot_job_runs_on_all_nodes(cluster: Cluster) -> None:
    task = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    _, _, gpus = task["resources"]["accelerators"].partition(":")
    assert "/checkpoints" in task["file_mounts"]
    variables = {"SKYPILOT_NUM_NODES": str(task["num_nodes"]), "SKYPILOT_NUM_GPUS_PER_NODE": gpus}
    variables |= {"SKYPILOT_NODE_IPS": "127.0.1.1\n127.0.1.2", "SKYPILOT_TASK_ID": "sky-1"}
    run_on_both(cluster, "", ["bash", "-c", task["run"]], **variables)


# ---- Ray: a module that runs each task on a thread.

RAY = """\
import collections, concurrent.futures
import ray.util
threads = concurrent.futures.ThreadPoolExecutor()
Task = collections.namedtuple("Task", "function")
Task.options = lambda self, scheduling_strategy: self
Task.remote = lambda self, *given: threads.submit(self.function, *given)
remote = lambda **options: Task
init = lambda: None
get = lambda some: [one.result() for one in some] if isinstance(some, list) else some.result()
"""
RAY_UTIL = """\
get_node_ip_address = lambda: "127.0.1.1"
remove_placement_group = lambda group: None
"""
RAY_PLACES = """\
import types
from ray import threads
PlacementGroupSchedulingStrategy = lambda group, placement_group_bundle_index: None
def placement_group(bundles, strategy):
    assert bundles == [{"CPU": 2, "GPU": 2}] * 2 and strategy == "STRICT_SPREAD"
    return types.SimpleNamespace(ready=lambda: threads.submit(int))
"""


def ray_job(cluster: Cluster) -> subprocess.Popen[str]:
    package = cluster.directory / "ray"
    (package / "util").mkdir(parents=True)
    (package / "__init__.py").write_text(RAY)
    for name in ("__init__", "placement_group", "scheduling_strategies"):
        (package / "util" / f"{name}.py").write_text(RAY_UTIL if name == "__init__" else RAY_PLACES)
    path = os.pathsep.join([str(cluster.directory), os.environ.get("PYTHONPATH", "")])
    recipe = str(RECIPES / "ray_nodes.py")
    return cluster.start("", 'exec "$@"', sys.executable, recipe, PYTHONPATH=path)


def test_ray_job_runs_on_all_nodes(cluster: Cluster) -> None:
    assert_succeeded(ray_job(cluster))
    assert_four_ranks(cluster, "--checkpoint=/checkpoints/digits.pt")


def test_ray_job_is_run_again_after_codes_of_which_another_run_can_succeed(
    cluster: Cluster,
) -> None:
    launcher = cluster.directory / "bin" / "elastic-launch"
    launcher.write_text('#!/bin/sh\necho >>"$OUT/runs"\nexit $(head -n1 codes)\n')
    (cluster.directory / "codes").write_text("1\n")
    job = ray_job(cluster)
    job.communicate(timeout=DEADLINE_S)
    assert (job.returncode, (cluster.out / "runs").read_text()) == (1, "\n" * NODES)
    shutil.rmtree(cluster.directory / "ray")
    (cluster.directory / "codes").write_text("78\n")
    job = ray_job(cluster)
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 78
    assert len((cluster.out / "runs").read_text()) == NODES * 11


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each specification of a pod in a recipe, with the recipe's name."""

    def inside(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            if "containers" in value:
                yield value
            for part in value.values():
                yield from inside(part)
        elif isinstance(value, list):
            for part in value:
                yield from inside(part)

    for path in sorted(RECIPES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield from ((path.name, pod) for pod in inside(document))


@pytest.mark.parametrize(("name", "pod"), list(pods()))
def test_pods_keep_checkpoints_and_have_shared_memory(name: str, pod: dict[str, Any]) -> None:
    mounted = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounted["/checkpoints"]]
    assert volumes[mounted["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def documented_codes(action: str) -> list[int]:
    rows = (ROOT / "docs/clusters.md").read_text().splitlines()
    (row,) = (row for row in rows if re.match(r"\* [\d, ]+:", row) and f"`{action}`" in row)
    return [int(code) for code in row[2:].partition(":")[0].split(",")]


@pytest.mark.parametrize("name", ["kubernetes-indexed-job.yaml", "jobset.yaml"])
def test_exit_codes_of_a_pod_have_the_actions_of_the_document(name: str) -> None:
    text = (RECIPES / name).read_text()
    found = {
        action: [int(code) for code in codes.split(",")]
        for action, codes in re.findall(
            r"action: (\w+)\s+onExitCodes:\s+operator: In\s+values: \[(.*)\]", text
        )
    }
    assert found == {action: documented_codes(action) for action in ("Ignore", "FailJob", "Count")}


def test_exit_codes_of_the_other_recipes_are_those_of_the_document() -> None:
    slurm = (RECIPES / "slurm.sbatch").read_text()
    [codes] = re.findall(r"^  ([\d |]+)\) scontrol requeue", slurm, re.MULTILINE)
    assert [int(code) for code in codes.split("|")] == documented_codes("scontrol requeue")
    again = documented_codes("Ignore")
    sky = yaml.safe_load((RECIPES / "skypilot.yaml").read_text())
    assert sky["resources"]["job_recovery"]["recover_on_exit_codes"] == again
    [codes] = re.findall(
        r"^AGAIN = \((.*)\)$", (RECIPES / "ray_nodes.py").read_text(), re.MULTILINE
    )
    assert [int(code) for code in codes.split(",")] == again
    [task] = yaml.safe_load((RECIPES / "volcano-job.yaml").read_text())["spec"]["tasks"]
    policies = [(one["exitCode"], one["action"]) for one in task["policies"] if "exitCode" in one]
    assert sorted(code for code, action in policies if action.startswith("Restart")) == again
    assert sorted(code for code, action in policies if action == "AbortJob") == [2, 72, 76]


# ---- The document.


def test_every_recipe_is_described() -> None:
    page = (ROOT / "docs/clusters.md").read_text()
    named = set(re.findall(r"examples/deploy/([\w.-]+)", page))
    assert named == {path.name for path in RECIPES.iterdir()}
