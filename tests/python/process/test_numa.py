"""The CPUs of each worker under --numa-binding, for machines that are described by sysfs trees."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic import _C, ConfigError
from elastic._host import numa
from elastic.constants import NUMA_MODES
from elastic.launcher import LaunchConfig, elastic_launch
from elastic.multiprocessing import DefaultLogsSpecs, start_processes
from elastic.numa.binding import AffinityMode, NumaOptions
from elastic.text import format_ranges

from support.launching import DEADLINE_S, launch


class Machine:
    """A sysfs tree of ``nodes``, each a list of cores, and each core a list of CPUs."""

    def __init__(self, root: Path, nodes: list[list[list[int]]], sockets: list[int]) -> None:
        self.root = root
        self.cpus: set[int] = set()
        self._write("devices/system/node/online", f"0-{len(nodes) - 1}\n")
        for node, cores in enumerate(nodes):
            cpus = [cpu for core in cores for cpu in core]
            self.cpus |= set(cpus)
            self._write(f"devices/system/node/node{node}/cpulist", format_ranges(cpus) + "\n")
            for core in cores:
                for cpu in core:
                    topology = f"devices/system/cpu/cpu{cpu}/topology"
                    self._write(f"{topology}/physical_package_id", f"{sockets[node]}\n")
                    self._write(f"{topology}/thread_siblings_list", format_ranges(core) + "\n")

    def cache(self, cpus: list[int], index: int, level: int, kind: str) -> None:
        for cpu in cpus:
            folder = f"devices/system/cpu/cpu{cpu}/cache/index{index}"
            self._write(f"{folder}/level", f"{level}\n")
            self._write(f"{folder}/type", f"{kind}\n")
            self._write(f"{folder}/shared_cpu_list", format_ranges(cpus) + "\n")

    def device(self, address: str, node: int) -> str:
        self._write(f"bus/pci/devices/{address}/numa_node", f"{node}\n")
        return address

    def bind(
        self, mode: str, nproc: int, devices: list[str], allowed: set[int] | None = None
    ) -> list[list[int]]:
        usable = frozenset(self.cpus if allowed is None else allowed)
        return numa.cpus_by_rank(mode, nproc, devices, usable, str(self.root))

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two sockets with two NUMA nodes each; a node has four cores of two hyper-threads."""
    nodes = [[[4 * node + core, 16 + 4 * node + core] for core in range(4)] for node in range(4)]
    return Machine(tmp_path, nodes, sockets=[0, 0, 1, 1])


def gpus(machine: Machine, *nodes: int) -> list[str]:
    return [machine.device(f"0000:{index:02x}:00.0", node) for index, node in enumerate(nodes)]


@pytest.mark.parametrize(
    ("mode", "nproc", "nodes", "expected"),
    [
        ("node", 2, (3, 0), ["12-15,28-31", "0-3,16-19"]),
        ("node", 1, (-1,), ["0-3,16-19"]),  # a device without a NUMA node belongs to node 0
        ("socket", 1, (2,), ["8-15,24-31"]),  # the CPUs of all NUMA nodes of the socket
        # Each GPU has its own cores, and the first ones have the rest.
        ("exclusive", 4, (1, 0, 1, 1), ["4-5,20-21", "0-3,16-19", "6,22", "7,23"]),
        ("exclusive", 1, (1, 1), ["4-5,20-21"]),  # the GPUs of other workers count
    ],
)
def test_a_worker_runs_on_cpus_near_its_gpu(
    machine: Machine, mode: str, nproc: int, nodes: tuple[int, ...], expected: list[str]
) -> None:
    got = machine.bind(mode, nproc, gpus(machine, *nodes))
    assert [format_ranges(cpus) for cpus in got] == expected


def test_exclusive_needs_a_core_for_each_gpu(machine: Machine) -> None:
    devices = gpus(machine, 0, 0, 0)
    with pytest.raises(ConfigError, match=r"3 workers cannot have exclusive cores, .* has 2"):
        machine.bind("exclusive", 3, devices, allowed={0, 1, 16})


def test_core_complex_takes_the_largest_last_level_cache_first(machine: Machine) -> None:
    for cpu in range(32):
        machine.cache([cpu], 0, 1, "Data")
        machine.cache([cpu], 1, 1, "Instruction")
        machine.cache(list(range(32)), 4, 9, "Instruction")  # ignored, whatever its level
    machine.cache([0, 16], 3, 3, "Unified")
    machine.cache([1, 2, 3, 17, 18, 19], 3, 3, "Unified")
    got = machine.bind("core-complex", 3, gpus(machine, 0, 0, 0))
    assert [format_ranges(cpus) for cpus in got] == ["1-3,17-19", "0,16", "1-3,17-19"]


def test_only_cpus_of_the_affinity_mask_are_used(machine: Machine) -> None:
    devices = gpus(machine, 0, 1)
    assert machine.bind("node", 1, devices, allowed={1, 2, 9}) == [[1, 2]]
    with pytest.raises(ConfigError, match="none of the CPUs of NUMA node 1 may be used here"):
        machine.bind("node", 2, devices, allowed={1, 2, 9})


def test_workers_without_gpus_are_spread_over_the_numa_nodes(machine: Machine) -> None:
    got = machine.bind("node", 8, [])
    assert [cpus[0] for cpus in got] == [0, 0, 4, 4, 8, 8, 12, 12]
    split = machine.bind("exclusive", 8, [])
    assert [format_ranges(cpus) for cpus in split[:2]] == ["0-1,16-17", "2-3,18-19"]


def test_a_rank_without_a_gpu_and_an_unknown_device_are_errors(machine: Machine) -> None:
    with pytest.raises(ConfigError, match="local rank 1 has no device"):
        machine.bind("node", 2, gpus(machine, 0))
    with pytest.raises(ConfigError, match=r"cannot read .*/0000:77:00.0/numa_node: No such file"):
        machine.bind("node", 1, ["0000:77:00.0"])


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [(mode, nodes) for mode in NUMA_MODES for nodes in ([0, 0, 1, 3], [2, 2, 2], [1])],
)
def test_the_result_is_torchs(
    machine: Machine, mode: str, nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = pytest.importorskip("torch.numa.binding")
    for cpu in range(32):
        group = cpu % 16 // 2 * 2
        machine.cache([group, group + 1, group + 16, group + 17], 2, 3, "Unified")
    devices = gpus(machine, *nodes)
    allowed = set(machine.cpus) - {5}
    real_open, real_list = open, os.listdir

    def moved(path: object) -> object:
        return f"{machine.root}{str(path)[4:]}" if str(path).startswith("/sys/") else path

    (machine.root / "devices/system/node/possible").write_text("0-3\n")
    count = "_get_gpu_count" if hasattr(binding, "_get_gpu_count") else "_get_device_count"
    node_of = count.replace("_get_", "_get_numa_node_index_for_").replace("count", "index")
    monkeypatch.setattr(binding, count, lambda: len(devices))
    monkeypatch.setattr(binding, node_of, lambda **index: nodes[next(iter(index.values()))])
    monkeypatch.setattr(binding, "open", lambda path, *a: real_open(moved(path), *a), raising=False)
    monkeypatch.setattr(os, "listdir", lambda path: real_list(moved(path)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    index_name = "gpu_index" if "gpu" in count else "device_index"
    theirs = [
        sorted(binding._get_logical_cpus_to_bind_to(numa_options=options, **{index_name: rank}))
        for rank in range(len(nodes))
    ]
    assert machine.bind(mode, len(nodes), devices, allowed) == theirs


# One write, because both workers write to one pipe.
SHOW = (
    "import os\n"
    "line = f\"{os.environ['RANK']} {sorted(os.sched_getaffinity(0))}\\n\"\n"
    "os.write(1, line.encode())\n"
)


def test_the_workers_of_the_launcher_are_bound_before_they_run(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    done = launch("--nproc-per-node=2", "--numa-binding=exclusive", str(script), check=True)
    ours = numa.cpus_by_rank("exclusive", 2, [])
    assert sorted(done.stdout.splitlines()) == [f"0 {ours[0]}", f"1 {ours[1]}"]
    assert not set(ours[0]) & set(ours[1])


def my_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_functions_and_processes_without_an_agent_are_bound(tmp_path: Path) -> None:
    options = NumaOptions(AffinityMode.EXCLUSIVE)
    ours = numa.cpus_by_rank("exclusive", 2, []) if len(my_cpus()) > 1 else None
    if ours is None:
        pytest.skip("needs two CPUs")
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", numa_options=options, max_restarts=0)
    assert elastic_launch(config, my_cpus)() == dict(enumerate(ours))
    script = tmp_path / "show.py"
    check = "import os, sys; sys.exit(sorted(os.sched_getaffinity(0)) != eval(sys.argv[1]))"
    script.write_text(check)
    for entry, args in (
        (my_cpus, {0: (), 1: ()}),
        (sys.executable, {rank: (str(script), str(ours[rank])) for rank in (0, 1)}),
    ):
        context = start_processes(
            "bound", entry, args, {0: {}, 1: {}}, DefaultLogsSpecs(), numa_options=options
        )
        result = context.wait()
        assert result is not None and not result.is_failed()
        assert result.return_values in ({0: ours[0], 1: ours[1]}, {0: None, 1: None})


def test_a_binding_that_fails_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    mode: Any = "nearest"
    options = NumaOptions(mode, should_fall_back_if_binding_fails=True)
    config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", numa_options=options, max_restarts=0)
    assert elastic_launch(config, my_cpus)() == {0: my_cpus()}
    assert "the workers are not bound to CPUs" in caplog.text


def test_a_cpu_that_does_not_exist_is_a_failed_start() -> None:
    with _C.WorkerGroup() as group:
        group.start([_C.WorkerCommand(["/bin/true"], env={}, cpus=[8191])])
        event = group.next_event(DEADLINE_S)
        assert event is not None and event.kind == _C.WorkerEvent.Kind.EXITED
        assert event.exit.stage == "set the CPU affinity of"
        assert event.exit.describe() == (
            "could not be started: set the CPU affinity of /bin/true: Invalid argument"
        )
