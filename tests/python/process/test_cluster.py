"""Options with the value auto: the nodes of a job from the variables of a scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest
from elastic import ConfigError
from elastic.cli import cluster, resolve
from elastic.cli.config import JobConfig, RendezvousConfig

from support.launching import Job, free_endpoint

SLURM = {
    "SLURM_JOB_ID": "1042",
    "SLURM_JOB_NUM_NODES": "6",
    "SLURM_JOB_NODELIST": "gpu[01-06]",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[02-05]",
    "SLURM_NODEID": "2",
}
KUBEFLOW = {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}
ALL = ["--nnodes=auto", "--rdzv-endpoint=auto", "--rdzv-id=auto", "--node-rank=auto"]
C10D = "--rdzv-backend=c10d"


def configure(environ: dict[str, str], *options: str) -> JobConfig:
    return resolve.parse([*options, "--no-python", "/bin/true"], environ)


def rendezvous(environ: dict[str, str], *options: str) -> RendezvousConfig:
    found = configure(environ, *options).rendezvous
    assert found is not None
    return found


def refusal(environ: dict[str, str], *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configure(environ, *options)
    return str(caught.value)


def test_a_slurm_step_gives_nodes_rank_endpoint_and_run_id() -> None:
    job = configure(SLURM, C10D, *ALL)
    assert job.rendezvous is not None
    where = (job.rendezvous.endpoint_host, job.rendezvous.endpoint_port)
    assert where == ("gpu02", 29400 + 42)
    assert (job.rendezvous.min_nodes, job.rendezvous.max_nodes) == (4, 4)
    assert (job.rendezvous.node_rank, job.spec.run_id) == (2, "1042.3")
    assert (
        "Slurm job 1042 step 3: --nnodes=4 --node-rank=2 --rdzv-endpoint=gpu02:29442 "
        "--rdzv-id=1042.3"
    ) in [sentence for _, sentence in job.notes]


def test_nothing_is_taken_from_a_scheduler_unless_asked_for() -> None:
    job = configure(SLURM)
    assert job.rendezvous is None and job.spec.run_id != "1042.3"
    assert not any("Slurm" in sentence for _, sentence in job.notes)


def test_a_port_can_be_given_for_the_endpoint_of_the_scheduler() -> None:
    options = (C10D, "--nnodes=1:4", "--rdzv-endpoint=auto:4000", "--rdzv-id=x")
    found = rendezvous(SLURM, *options)
    assert (found.endpoint_host, found.endpoint_port) == ("gpu02", 4000)


def test_static_ranks_come_from_the_scheduler_too() -> None:
    found = rendezvous(SLURM, "--nnodes=auto", "--node-rank=auto", "--master-addr=auto")
    assert (found.backend, found.node_rank) == ("static", 2)
    assert (found.endpoint_host, found.endpoint_port) == ("gpu02", 29500)


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("gpu[03-05,7],login", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("r[1-2]n[01-04]", "r1n01"),
        ("gpu[1,3]-ib,x", "gpu1-ib"),
        ("rack[1-2]node[01,03],x", "rack1node01"),
        ("r[1,3]n[02-04]s[5],x", "r1n02s5"),
        ("", ""),
        ("gpu[1-3", ""),
        ("gpu[],x", ""),
        ("gpu]", ""),
    ],
)
def test_the_first_host_of_a_list_of_slurm(names: str, first: str) -> None:
    assert cluster.first_host(names) == first


def test_a_batch_script_of_several_nodes_must_use_srun() -> None:
    batch = {k: v for k, v in SLURM.items() if not k.startswith("SLURM_STEP")}
    for environ in (batch, batch | {"SLURM_STEP_ID": "4294967291"}):
        assert "on one of 6 nodes: start it on all of them with srun" in refusal(environ, *ALL)
    one = batch | {"SLURM_JOB_NUM_NODES": "1"}
    assert configure(one, "--nnodes=auto", "--rdzv-id=auto").spec.run_id == "1042"


def test_an_endpoint_of_the_scheduler_needs_no_backend_and_no_rank() -> None:
    """With static, torchrun's default, every node would have rank 0 and wait for the others."""
    found = rendezvous(SLURM, "--nnodes=auto", "--rdzv-endpoint=auto", "--rdzv-id=auto")
    assert (found.backend, found.node_rank, found.endpoint_host) == ("c10d", -1, "gpu02")
    static = ("--nnodes=auto", "--rdzv-endpoint=auto", "--rdzv-backend=static")
    assert (found := rendezvous(SLURM, *static)).backend == "static" and found.node_rank == 2
    assert rendezvous(SLURM, "--nnodes=auto", "--master-addr=auto").node_rank == 2
    assert rendezvous(SLURM, *static, "--rdzv-conf=rank=3").node_rank == 3
    pods = {name: text for name, text in KUBEFLOW.items() if name != "PET_NODE_RANK"}
    assert "static backend needs the rank of each node" in refusal(pods, *static)
    alone = SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
    job = configure(alone, "--nnodes=auto", "--master-addr=127.0.0.1", "--rdzv-id=auto")
    assert job.rendezvous is None


def test_a_variable_of_torchrun_does_not_hide_slurm() -> None:
    found = rendezvous(SLURM | {"PET_NNODES": "2"}, C10D, "--rdzv-endpoint=auto", "--rdzv-id=auto")
    assert (found.max_nodes, found.endpoint_host) == (2, "gpu02")


# The variables of a job with two components, of one and two nodes, on Slurm 22.05.
HET = SLURM | {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
}


def step(nodes: int, base: dict[str, str]) -> dict[str, str]:
    return base | {"SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(nodes)}


def test_a_step_of_one_component_of_a_heterogeneous_job_is_a_warning() -> None:
    unknown = {name: text for name, text in HET.items() if "HET_GROUP" not in name}
    for environ in (step(3, HET), step(3, unknown)):
        job = configure(environ, C10D, *ALL)
        assert not any("heterogeneous" in text for _, text in job.notes)
        assert job.rendezvous is not None and job.rendezvous.min_nodes == 3
    for environ, of in ((HET, "1 of 3 nodes"), (unknown, "1 node")):
        narrow = step(1, environ)
        warned = [text for _, text in configure(narrow, C10D, *ALL).notes if "whose" in text]
        assert f"this step has {of} of the heterogeneous Slurm job 1042" in warned[0]
        assert "srun --het-group=0,1" in warned[0]
        assert "heterogeneous" in refusal(narrow, C10D, *ALL, "--strict")
    batch = {name: text for name, text in HET.items() if not name.startswith("SLURM_STEP")}
    assert "on one of 3 nodes: start it on all of them with srun" in refusal(batch, *ALL)


def test_several_tasks_per_node_are_an_error() -> None:
    environ = SLURM | {"SLURM_STEP_NUM_TASKS": "32"}
    assert "srun starts 32 tasks on 4 nodes" in refusal(environ, C10D, *ALL)
    one = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_LOCALID": "1"}
    text = refusal(one, "--nnodes=auto", "--rdzv-id=auto")
    assert "srun starts several tasks on a node (SLURM_LOCALID=1)" in text
    first = configure(one | {"SLURM_LOCALID": "0"}, "--nnodes=auto", "--rdzv-id=auto")
    assert first.spec.run_id == "7"


def test_kubeflow_variables_are_used_for_auto_on_the_command_line() -> None:
    job = configure(KUBEFLOW, C10D, *ALL)
    assert job.rendezvous is not None
    where = (job.rendezvous.endpoint_host, job.rendezvous.endpoint_port)
    assert (where, job.rendezvous.max_nodes) == (("job-master-0", 23456), 3)
    assert (job.rendezvous.node_rank, job.spec.run_id) == (1, "job-master-0")


def test_the_variables_of_options_may_be_auto() -> None:
    environ = SLURM | {"PET_NNODES": "auto", "PET_RDZV_ENDPOINT": "auto", "PET_RDZV_ID": "auto"}
    found = rendezvous(environ, C10D)
    assert (found.max_nodes, found.endpoint_host) == (4, "gpu02")


def test_an_indexed_job_has_rank_endpoint_and_run_id_but_no_number_of_nodes() -> None:
    pod = {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}
    node = cluster.find(pod, lambda name: f"{name}.workers.default.svc.cluster.local")
    assert node is not None
    assert (node.rank, node.run_id) == ("2", "train")
    assert node.host == "train-0.workers.default.svc.cluster.local"
    assert "does not pass the number of pods to a container" in refusal(pod, C10D, *ALL)
    without_service = refusal(pod, C10D, "--nnodes=3", "--rdzv-id=auto", "--rdzv-endpoint=auto")
    assert "set spec.subdomain of the pods" in without_service
    renamed = pod | {"HOSTNAME": "other"}
    assert "the host name was changed" in refusal(renamed, "--rdzv-id=auto")


def test_auto_without_a_scheduler_is_an_error() -> None:
    text = refusal({}, C10D, "--nnodes=auto")
    assert "--nnodes is auto, but there are no variables of Slurm (SLURM_JOB_ID)" in text
    assert "SLURM_NODEID" not in text


def test_two_nodes_of_a_slurm_step_form_one_job(tmp_path: Path) -> None:
    host, port = free_endpoint().split(":")
    step = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": f"{host},other",
    }  # fmt: skip
    options = [C10D, "--nnodes=auto", "--node-rank=auto", f"--rdzv-endpoint=auto:{port}",
               "--rdzv-id=auto"]  # fmt: skip
    program = ["--no-python", "/bin/sh", "-c", "echo $RANK $WORLD_SIZE $TORCHELASTIC_RUN_ID"]
    with Job(options, program) as job:
        for index in ("1", "0"):
            job.start(**step, SLURM_NODEID=index)
        second, first = job.finish()
    assert (first.stdout, second.stdout) == ("0 2 7.0\n", "1 2 7.0\n"), first.stderr
    assert "elastic-launch: Slurm job 7 step 0: --nnodes=2 --node-rank=0" in first.stderr
