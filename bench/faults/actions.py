"""What is done to a job. Each function returns an action for a row of the table of scenes."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from bench.faults.job import Job
from bench.faults.launchers import PORT

Action = Callable[[Job], None]
READY_S = 120.0
UNNOTICED_S = 20.0  # after which training that goes on counts as unharmed by the loss of an agent


def signal_worker(rank: int, number: signal.Signals) -> Action:
    def act(job: Job) -> None:
        pid = job.worker(rank)
        job.harm.workers.add(pid)
        job.harm.culprit = pid
        job.begin()
        os.kill(pid, number)

    return act


def kill_worker_twice(rank: int, pause: float) -> Action:
    """The fault is the second one, `pause` seconds after training went on."""

    def act(job: Job) -> None:
        first = job.worker(rank)
        signal_worker(rank, signal.SIGKILL)(job)

        def steps_again() -> bool:
            return any(
                s.kind == "step" and s.rank == rank and s.pid != first
                for s in job.stamps()
                if s.at > job.harm.at
            )

        if not job.wait(steps_again, READY_S):
            raise RuntimeError("training did not go on after the first fault")
        time.sleep(pause)
        signal_worker(rank, signal.SIGKILL)(job)

    return act


def on_busy_hosts(processes: int, fault: Action) -> Action:
    """The same while this many processes compute; they all share the machine of the campaign."""

    def act(job: Job) -> None:
        for _ in range(processes):
            busy = "import threading as t; t.Timer(120, __import__('os')._exit, (0,)).start()\n"
            one = subprocess.Popen([sys.executable, "-c", busy + "while True: pass"])
            job.cleanup.callback(one.wait)
            job.cleanup.callback(one.kill)
        fault(job)

    return act


def order_worker(rank: int, what: str) -> Action:
    def act(job: Job) -> None:
        job.harm.culprit = None if what == "exit 0" else job.worker(rank)
        job.order(rank, what)

    return act


def wait_for_first_failure(rank: int) -> Action:
    """The script of this rank fails at once, in each round."""

    def act(job: Job) -> None:
        def started() -> list[int]:
            return [s.pid for s in job.stamps() if s.kind == "start" and s.rank == rank]

        job.begin()
        if not job.wait(lambda: bool(started()), READY_S):
            raise RuntimeError("no worker has started")
        job.harm.culprit = started()[0]
        job.harm.workers.add(started()[0])

    return act


def signal_agent(node: int, number: signal.Signals) -> Action:
    def act(job: Job) -> None:
        job.harm.nodes.add(node)
        job.begin()
        os.kill(job.agents[node].pid, number)
        if number in (signal.SIGKILL, signal.SIGSTOP):
            job.harm.until = job.harm.at + UNNOTICED_S

    return act


def signal_all_agents(number: signal.Signals) -> Action:
    def act(job: Job) -> None:
        job.begin()
        for agent in job.agents.values():
            os.kill(agent.pid, number)

    return act


def pause_agent(node: int, seconds: float) -> Action:
    def act(job: Job) -> None:
        job.begin()
        os.kill(job.agents[node].pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(job.agents[node].pid, signal.SIGCONT)
        job.harm.until = time.monotonic()

    return act


def kill_guardian(node: int) -> Action:
    def act(job: Job) -> None:
        pid = job.guardian(node)
        job.harm.nodes.add(node)
        job.begin()
        os.kill(pid, signal.SIGKILL)

    return act


def kill_node(*nodes: int) -> Action:
    """Every process of these nodes is killed; the kernels close their connections."""

    def act(job: Job) -> None:
        job.give_up(*nodes)
        job.begin()
        job.kill_marked(lambda node: node in nodes)

    return act


def lose_host(*nodes: int) -> Action:
    """The hosts disappear: nothing that they send arrives any more."""

    def act(job: Job) -> None:
        job.give_up(*nodes)
        job.begin()
        for node in nodes:
            job.hosts[node].unplug()

    return act


def cut_link(node: int, seconds: float, times: int = 1, pause: float = 0.0) -> Action:
    """The link of a host is down for a while, and up again, some times."""

    def act(job: Job) -> None:
        job.begin()
        for _ in range(times):
            job.hosts[node].unplug()
            time.sleep(seconds)
            job.hosts[node].plug_in()
            time.sleep(pause)
        job.harm.until = time.monotonic()

    return act


def drop_packets(sender: int, receiver: int, *, is_lost: bool = True) -> Action:
    """One host does not reach another one, which still reaches it.

    `is_lost`: the sender's node is not expected to go on.
    """

    def act(job: Job) -> None:
        if is_lost:
            job.give_up(sender if sender != 0 else receiver)
        job.begin()
        _route(job, sender, receiver)

    return act


def separate(first: int, second: int) -> Action:
    """Two hosts do not reach each other; both reach the others."""

    def act(job: Job) -> None:
        job.begin()
        _route(job, first, second)
        _route(job, second, first)

    return act


def _route(job: Job, sender: int, receiver: int) -> None:
    target = f"{job.hosts[receiver].address}/32"
    command = job.hosts[sender].command("ip", "route", "add", "blackhole", target)
    subprocess.run(command, check=True)


def fill_disk(*, then_kill: int | None = None) -> Action:
    """The file system of the log directory is full; afterwards a worker is killed."""

    def act(job: Job) -> None:
        assert job.logs is not None
        job.begin()
        with contextlib.suppress(OSError), (job.logs / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        if then_kill is not None:
            signal_worker(then_kill, signal.SIGKILL)(job)

    return act


def exhaust_descriptors(node: int, kill: int) -> Action:
    """The agent can open no further descriptor when its worker is killed."""

    def act(job: Job) -> None:
        pid = job.agents[node].pid
        used = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, used))
        signal_worker(kill, signal.SIGKILL)(job)

    return act


def start_node(node: int) -> Action:
    def act(job: Job) -> None:
        job.begin()
        job.spawn(node)

    return act


def replace_node(lost: int, by: int) -> Action:
    """A node is killed, and another one is started on a new host two seconds later."""

    def act(job: Job) -> None:
        kill_node(lost)(job)
        time.sleep(2.0)
        job.spawn(by)

    return act


def lose_with_spare(lost: int, spare: int) -> Action:
    """A surplus node waits; then another one is killed."""

    def act(job: Job) -> None:
        job.spawn(spare)
        time.sleep(6.0)  # no launcher reports to others that a spare has joined
        kill_node(lost)(job)

    return act


def send_garbage(sender: int, connections: int = 100) -> Action:
    """Random bytes, a request of HTTP, and an announced length of 2 GiB, to the rendezvous."""
    program = (
        "import os, socket, sys\n"
        "texts = [os.urandom(4096), b'GET / HTTP/1.1\\r\\n\\r\\n', b'']\n"
        "texts.append(b'\\xff\\xff\\xff\\x7f' * 8)\n"
        "for number in range(int(sys.argv[3])):\n"
        "    try:\n"
        "        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as peer:\n"
        "            peer.sendall(texts[number % len(texts)])\n"
        "    except OSError:\n"
        "        pass\n"
    )

    def act(job: Job) -> None:
        job.begin()
        command = [sys.executable, "-c", program, job.hosts[0].address, str(PORT), str(connections)]
        subprocess.run(job.hosts[sender].command(*command), check=True, timeout=60)
        job.harm.until = time.monotonic()

    return act


def hold_connections(sender: int, connections: int = 400) -> Action:
    """Connections that send nothing, while a worker is killed."""
    program = (
        "import socket, sys\n"
        "held = []\n"
        "for _ in range(int(sys.argv[3])):\n"
        "    try:\n"
        "        held.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 5))\n"
        "    except OSError:\n"
        "        break\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )

    def act(job: Job) -> None:
        command = [sys.executable, "-c", program, job.hosts[0].address, str(PORT), str(connections)]
        holder = subprocess.Popen(
            job.hosts[sender].command(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        job.cleanup.callback(_end, holder)
        assert holder.stdout is not None
        holder.stdout.readline()
        signal_worker(1, signal.SIGKILL)(job)

    return act


def _end(holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.close()
    holder.wait()
    holder.stdout.close()


def step_clock(seconds: int) -> Action:
    """The wall clock of one node jumps; the scene has preloaded what makes that possible."""

    def act(job: Job) -> None:
        job.begin()
        (job.folder / "clock-offset").write_text(f"{seconds}\n")
        time.sleep(8.0)
        job.harm.until = time.monotonic()

    return act
