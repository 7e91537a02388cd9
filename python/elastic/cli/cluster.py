"""Values of options that are ``auto``, from the variables of Slurm, Kubeflow or Kubernetes.

Nothing is taken from the scheduler unless an option asks for it, and the values are logged.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from elastic.cli.command_line import CommandLine, Value
from elastic.cli.nodes import bounds
from elastic.constants import COORDINATOR_PORT
from elastic.errors import ConfigError
from elastic.text import is_number, join_endpoints, plural, split_endpoint

AUTO = "auto"
OPTIONS = ("nnodes", "node-rank", "rdzv-endpoint", "rdzv-id", "master-addr")

# Different jobs of Slurm use different ports, in case they share a host.
SLURM_PORTS = 1000
# SLURM_STEP_ID of a batch script, and of other steps that are no srun.
SLURM_SPECIAL_STEPS = 0xFFFFFFF0
HET_COMPONENTS_MAX = 128  # as in Slurm


class Node(NamedTuple):
    """What a scheduler knows about this node; "": not passed to the process."""

    scheduler: str
    nnodes: str = ""
    rank: str = ""
    host: str = ""  # of the first node
    port: int = COORDINATOR_PORT
    run_id: str = ""
    # By option: why the value is missing, and what to do.
    missing: Mapping[str, str] = {}
    problem: str = ""  # a warning about the number of nodes


def is_auto(name: str, text: str) -> bool:
    return text == AUTO or (name == "rdzv-endpoint" and text.startswith(f"{AUTO}:"))


def resolve(line: CommandLine, environ: Mapping[str, str]) -> tuple[CommandLine, str]:
    """The command line with values for ``auto``, and a sentence for the log ("": none is used)."""
    wanted = [name for name in OPTIONS if is_auto(name, line.text(name))]
    if not wanted:
        return line, ""
    node = find(environ)
    if node is None:
        raise ConfigError(
            f"{line.origin(wanted[0])} is {line.text(wanted[0])}, but there are no variables of "
            "Slurm (SLURM_JOB_ID), Kubeflow (PET_NNODES, PET_MASTER_ADDR) or a Kubernetes Indexed "
            "Job (JOB_COMPLETION_INDEX): start it with srun or in such a job, or give the value"
        )
    values, used = dict(line.values), []
    for name in wanted:
        text = _value(name, line.text(name), node)
        if not text:
            raise ConfigError(
                f"{line.origin(name)} is {AUTO}: "
                + node.missing.get(name, f"{node.scheduler} does not pass this value; give it")
            )
        values[name] = Value(text, f"{line.origin(name)}={AUTO}")
        used.append(f"--{name}={text}")
    line = line._replace(values=values)
    for name, text in _implied(line, wanted, node).items():
        values[name] = Value(text, f"--{name}={text}")
        used.append(f"--{name}={text}")
    if node.problem and "nnodes" in wanted:
        line.warnings.append(node.problem)
    return line, f"{node.scheduler}: {' '.join(used)}"


def _implied(line: CommandLine, wanted: Sequence[str], node: Node) -> dict[str, str]:
    """What the nodes need besides: with static each one would have rank 0, and wait for others."""
    is_alone = bounds(line)[1] == 1
    has_rank = "node-rank" in line.values or re.search(r"\brank\s*=", line.text("rdzv-conf"))
    is_asked = {"rdzv-endpoint", "master-addr"} & set(wanted)
    if is_alone or has_rank or not is_asked or line.switch("standalone"):
        return {}
    if "rdzv-endpoint" in wanted and "rdzv-backend" not in line.values:
        return {"rdzv-backend": "c10d"}
    if line.text("rdzv-backend") != "static":
        return {}
    if not node.rank:
        raise ConfigError(
            f"{line.origin('node-rank')} is missing: the static backend needs the rank of each "
            f"node, and {node.scheduler} does not pass it; give it, or --rdzv-backend=c10d"
        )
    return {"node-rank": node.rank}


def _value(name: str, text: str, node: Node) -> str:
    if name == "nnodes":
        return node.nnodes
    if name == "node-rank":
        return node.rank
    if name == "rdzv-id":
        return node.run_id
    if name == "master-addr" or not node.host:
        return node.host
    port = text.partition(":")[2]
    return join_endpoints([(node.host, port or node.port)])


def _canonical_name(host: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_CANONNAME)
    except OSError:
        return host
    return found[0][3] or host


def find(
    environ: Mapping[str, str], canonical_name: Callable[[str], str] = _canonical_name
) -> Node | None:
    """The node of the scheduler whose variables are set."""

    def is_given(name: str) -> bool:
        return not is_auto("rdzv-endpoint", environ.get(name, AUTO))

    has_nodes = is_given("PET_NNODES")
    # On Slurm people set single variables of torchrun, too.
    if has_nodes and (is_given("PET_MASTER_ADDR") or is_given("PET_RDZV_ENDPOINT")):
        return _kubeflow(environ)
    if environ.get("SLURM_JOB_ID"):
        return _slurm(environ)
    if environ.get("JOB_COMPLETION_INDEX"):
        return _indexed_job(environ, canonical_name)
    return _kubeflow(environ) if has_nodes or is_given("PET_MASTER_ADDR") else None


def _slurm(environ: Mapping[str, str]) -> Node:
    job, step = environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", "")
    in_step = is_number(step) and int(step) < SLURM_SPECIAL_STEPS
    nodes = environ.get("SLURM_STEP_NUM_NODES") if in_step else None
    nodes = nodes or environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES", "")
    whole = _nodes_of_het_job(environ)
    if not in_step and whole:
        nodes = str(whole)
    if not in_step and nodes not in ("", "1"):
        raise ConfigError(
            f"elastic-launch runs in the batch script of Slurm job {job}, on one of {nodes} nodes: "
            "start it on all of them with srun --ntasks-per-node=1 elastic-launch …"
        )
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "") if in_step else ""
    if tasks and nodes and tasks != nodes:
        started = f"{plural(tasks, 'task')} on {plural(nodes, 'node')}"
    elif (index := environ.get("SLURM_LOCALID", "0")) != "0":
        started = f"several tasks on a node (SLURM_LOCALID={index})"
    else:
        started = ""
    if started:
        raise ConfigError(
            f"srun starts {started}, but elastic-launch is started once per node and starts the "
            "workers itself: add --ntasks-per-node=1 to srun"
        )
    names = environ.get("SLURM_STEP_NODELIST", "") if in_step else ""
    names = names or environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    number = int(job) if is_number(job) else 0
    return Node(
        f"Slurm job {job}" + (f" step {step}" if in_step else ""),
        nodes,
        environ.get("SLURM_NODEID", ""),
        first_host(names),
        COORDINATOR_PORT + number % SLURM_PORTS,
        f"{job}.{step}" if in_step else job,
        problem=_het_problem(environ, nodes, whole) if in_step else "",
    )


def _nodes_of_het_job(environ: Mapping[str, str]) -> int:
    """The number of nodes of all components of a heterogeneous job; 0: unknown, or it is none."""
    size = environ.get("SLURM_HET_SIZE", "")
    parts = range(int(size) if is_number(size) and int(size) <= HET_COMPONENTS_MAX else 0)
    counts = [environ.get(f"SLURM_JOB_NUM_NODES_HET_GROUP_{part}", "") for part in parts]
    return sum(map(int, counts)) if all(map(is_number, counts)) else 0


def _het_problem(environ: Mapping[str, str], nodes: str, whole: int) -> str:
    """A warning if the step does not cover all components of a heterogeneous job."""
    size = environ.get("SLURM_HET_SIZE", "")
    if not is_number(size) or not 1 < int(size) <= HET_COMPONENTS_MAX or not is_number(nodes):
        return ""
    # A step of all components has more nodes than the component of this node.
    own = environ.get("SLURM_JOB_NUM_NODES", nodes)
    if int(nodes) >= whole if whole else nodes != own:
        return ""
    groups = ",".join(map(str, range(int(size))))
    of = f"{nodes} of {plural(str(whole), 'node')}" if whole else plural(nodes, "node")
    return (
        f"this step has {of} of the heterogeneous Slurm job {environ['SLURM_JOB_ID']}, whose "
        f"{size} components train apart unless one step has all of them: srun --het-group={groups}"
    )


def first_host(names: str) -> str:
    """The first host of a list in Slurm's form: ``gpu[03-05,7],login`` is ``gpu03``.

    A name may have several brackets. "": it is not a list in this form.
    """
    # Commas in brackets do not end a name.
    found = re.match(r"((?:[^\[\],]|\[\w[^\[\]]*\])*)(?:,|$)", names)
    first = found[1] if found else ""
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _kubeflow(environ: Mapping[str, str]) -> Node:
    def given(name: str) -> str:
        text = environ.get(f"PET_{name}", "")
        return "" if is_auto("rdzv-endpoint", text) else text

    host, port = given("MASTER_ADDR"), given("MASTER_PORT")
    if endpoint := given("RDZV_ENDPOINT"):
        host, port = split_endpoint(endpoint, "PET_RDZV_ENDPOINT")
    return Node(
        "Kubeflow",
        given("NNODES"),
        given("NODE_RANK"),
        host,
        int(port) if is_number(port) else COORDINATOR_PORT,
        given("RDZV_ID") or host,
        {"rdzv-endpoint": "Kubeflow has set neither PET_RDZV_ENDPOINT nor PET_MASTER_ADDR"},
    )


def _indexed_job(environ: Mapping[str, str], canonical_name: Callable[[str], str]) -> Node:
    """A pod of an Indexed Job or a JobSet. Its host name is the job's name and the index."""
    index = environ["JOB_COMPLETION_INDEX"]
    pod = environ.get("HOSTNAME") or socket.gethostname()
    pod = pod.partition(".")[0]
    job = pod.removesuffix(f"-{index}")
    if job == pod:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX is {index}, but the pod's host name {pod} does not end with it: "
            "the host name was changed, so give --rdzv-endpoint and --rdzv-id"
        )
    full = canonical_name(pod)
    domain = full.partition(".")[2] if full.startswith(f"{pod}.") else ""
    host = f"{job}-0.{domain}" if domain else ""
    no_host = (
        f"the pod {pod} has no DNS name: set spec.subdomain of the pods to the name of a headless "
        "Service"
    )
    return Node(
        f"Kubernetes job {job}",
        "",
        index,
        host,
        COORDINATOR_PORT,
        job,
        {
            "nnodes": "Kubernetes does not pass the number of pods to a container: give "
            "--nnodes=N, the job's completions",
            "rdzv-endpoint": no_host,
            "master-addr": no_host,
        },
    )
