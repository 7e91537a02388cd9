"""The table of scenes: what is done to which job, and what a launcher should make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from signal import SIGKILL, SIGSEGV, SIGSTOP, SIGTERM

from bench.faults import actions as do
from bench.faults.reduce import CONTINUE, END, RECOVER

__all__ = ["BY_NAME", "NOT_COVERED", "SCENES", "Scene", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a launcher gets in one scene beside its own settings."""

    options: tuple[str, ...] = ()
    conf: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    name: str
    what: str  # for people: what is done, to whom
    fault: do.Action
    expected: Sequence[str]
    nodes: int = 3  # agents at the start, each on a host of its own
    more_hosts: int = 0  # for agents that start later
    nnodes: str = "2:3"
    nproc: int = 1
    world: int | None = None  # ranks after the recovery; None: any number
    deadline_s: float = 60.0
    settings: Mapping[str, Settings] = field(default_factory=dict)
    needs: str = ""  # a part that a launcher may not have
    at_start: bool = False  # the fault is there before training begins
    settle_s: float = 8.0  # training goes on for so long before the fault, as before most
    has_full_disk: bool = False
    has_clock: bool = False
    fails: int | None = None  # the rank whose script fails at once


# The first node has the rendezvous: the coordinator of elastic-launch, the store of the others.
TWO = {"nodes": 2, "nnodes": "2", "nproc": 2, "world": 4}
ONE_VOTER = {"elastic-launch": Settings(conf="voters=1")}

SCENES: tuple[Scene, ...] = (
    # A worker.
    Scene(name="worker-killed", what="SIGKILL to a worker, as the OOM killer sends it",
          fault=do.signal_worker(2, SIGKILL), expected=(RECOVER,), **TWO),
    Scene(name="worker-killed-early", what="the same, 0.2 s after the first step",
          fault=do.signal_worker(2, SIGKILL), expected=(RECOVER,), settle_s=0.2, **TWO),
    Scene(name="worker-killed-again", what="the same, 1 s after training went on from the first",
          fault=do.kill_worker_twice(2, 1.0), expected=(RECOVER,), **TWO),
    Scene(name="worker-killed-busy", what="the same, while 8 processes more compute",
          fault=do.on_busy_hosts(8, do.signal_worker(2, SIGKILL)), expected=(RECOVER,), **TWO),
    Scene(name="worker-raises", what="a worker raises an exception",
          fault=do.order_worker(2, "raise"), expected=(RECOVER,), **TWO),
    Scene(name="worker-crashes", what="SIGSEGV to a worker",
          fault=do.signal_worker(1, SIGSEGV), expected=(RECOVER,), **TWO),
    Scene(name="worker-fails-at-once", what="the script of rank 1 exits with 1, in every round",
          fault=do.wait_for_first_failure(1), expected=(END,), nodes=2, nnodes="2",
          at_start=True, fails=1, deadline_s=90.0),
    Scene(name="worker-hangs", what="a worker never enters the collective operation",
          fault=do.order_worker(2, "hang"), expected=(RECOVER,), **TWO),
    Scene(name="worker-stopped", what="SIGSTOP to a worker",
          fault=do.signal_worker(2, SIGSTOP), expected=(RECOVER,), **TWO),
    Scene(name="worker-exits-early", what="a rank exits with 0 while the others wait for it",
          fault=do.order_worker(1, "exit 0"), expected=(RECOVER, END), nodes=2, nnodes="2"),
    # A launcher.
    Scene(name="agent-killed", what="SIGKILL to the agent of a node",
          fault=do.signal_agent(2, SIGKILL), expected=(RECOVER, CONTINUE), world=2),
    Scene(name="first-agent-killed", what="SIGKILL to the agent with the rendezvous",
          fault=do.signal_agent(0, SIGKILL), expected=(RECOVER, CONTINUE), world=2),
    Scene(name="guardian-killed", what="SIGKILL to the guardian of a node", needs="guardian",
          fault=do.kill_guardian(2), expected=(RECOVER,), world=2),
    Scene(name="first-guardian-killed", what="SIGKILL to the guardian of the first node",
          needs="guardian", fault=do.kill_guardian(0), expected=(RECOVER,), world=2),
    Scene(name="agent-stopped", what="SIGSTOP to the agent of a node, for good",
          fault=do.signal_agent(2, SIGSTOP), expected=(RECOVER, CONTINUE), world=2),
    Scene(name="first-agent-stopped", what="SIGSTOP to the agent with the rendezvous, for good",
          fault=do.signal_agent(0, SIGSTOP), expected=(RECOVER, CONTINUE), world=2),
    Scene(name="agent-paused", what="SIGSTOP to an agent for 2 s",
          fault=do.pause_agent(2, 2.0), expected=(CONTINUE,)),
    Scene(name="first-agent-paused", what="SIGSTOP to the agent with the rendezvous for 6 s",
          fault=do.pause_agent(0, 6.0), expected=(CONTINUE, RECOVER)),
    Scene(name="agent-preempted", what="SIGTERM to the agent of a node",
          fault=do.signal_agent(2, SIGTERM), expected=(RECOVER,), world=2),
    Scene(name="first-agent-preempted", what="SIGTERM to the agent with the rendezvous",
          fault=do.signal_agent(0, SIGTERM), expected=(RECOVER,), world=2),
    Scene(name="job-cancelled", what="SIGTERM to all agents",
          fault=do.signal_all_agents(SIGTERM), expected=(END,)),
    # A host and its network.
    Scene(name="node-killed", what="all processes of a node are killed",
          fault=do.kill_node(2), expected=(RECOVER,), world=2),
    Scene(name="host-lost", what="the link of a host goes down, for good",
          fault=do.lose_host(2), expected=(RECOVER,), world=2),
    Scene(name="first-host-lost", what="the same, the host with the rendezvous",
          fault=do.lose_host(0), expected=(RECOVER,), world=2),
    Scene(name="two-hosts-lost", what="two of four hosts at once, not that of the rendezvous",
          fault=do.lose_host(2, 3), expected=(RECOVER,), world=2, nodes=4, nnodes="2:4",
          settings=ONE_VOTER),
    Scene(name="two-nodes-killed", what="all processes of two of four nodes, not of the first",
          fault=do.kill_node(2, 3), expected=(RECOVER,), world=2, nodes=4, nnodes="2:4",
          settings=ONE_VOTER),
    Scene(name="link-blips", what="the link of a host is down for 1 s",
          fault=do.cut_link(2, 1.0), expected=(CONTINUE,)),
    Scene(name="first-link-blips", what="the same, the host with the rendezvous",
          fault=do.cut_link(0, 1.0), expected=(CONTINUE,)),
    Scene(name="link-returns", what="the link of a host is down for 8 s; then all train",
          fault=do.cut_link(2, 8.0), expected=(RECOVER, CONTINUE), world=3),
    Scene(name="link-flaps", what="the link of a host is down for 0.5 s, six times",
          fault=do.cut_link(2, 0.5, 6, 1.0), expected=(CONTINUE,)),
    Scene(name="one-way-to-first", what="packets of a host to that of the rendezvous are dropped",
          fault=do.drop_packets(2, 0), expected=(RECOVER,), world=2),
    Scene(name="one-way-from-first", what="packets of the rendezvous's host to another are dropped",
          fault=do.drop_packets(0, 2), expected=(RECOVER,), world=2),
    Scene(name="two-hosts-separated", what="two hosts reach the first one, but not each other",
          fault=do.separate(1, 2), expected=(RECOVER, END), deadline_s=120.0),
    # Resources.
    Scene(name="disk-full", what="the file system of the log directory is full",
          fault=do.fill_disk(), expected=(CONTINUE,), has_full_disk=True),
    Scene(name="disk-full-restart", what="the same, then SIGKILL to a worker",
          fault=do.fill_disk(then_kill=1), expected=(RECOVER, END), has_full_disk=True),
    Scene(name="no-descriptors", what="an agent without free descriptors, SIGKILL to its worker",
          fault=do.exhaust_descriptors(1, 1), expected=(RECOVER, END), nodes=2, nnodes="2"),
    Scene(name="clock-steps", what="the wall clock of one node jumps by an hour",
          fault=do.step_clock(3600), expected=(CONTINUE,), has_clock=True),
    # Nodes come.
    Scene(name="node-joins", what="a third node is started",
          fault=do.start_node(2), expected=(RECOVER,), world=3, nodes=2, more_hosts=1),
    Scene(name="node-replaced", what="a node of three is killed, another one starts 2 s later",
          fault=do.replace_node(1, 3), expected=(RECOVER,), world=3, nnodes="3", more_hosts=1),
    Scene(name="spare-takes-over", what="a node is killed while a surplus one waits",
          fault=do.lose_with_spare(1, 2), expected=(RECOVER,), world=2, nodes=2, nnodes="2",
          more_hosts=1),
    # Other programs.
    Scene(name="garbage", what="100 connections with random bytes to the port of the rendezvous",
          fault=do.send_garbage(3), expected=(CONTINUE,), more_hosts=1),
    Scene(name="held-connections", what="400 idle connections to that port, SIGKILL to a worker",
          fault=do.hold_connections(3), expected=(RECOVER,), world=3, more_hosts=1),
)  # fmt: skip

BY_NAME = {scene.name: scene for scene in SCENES}

# What nobody should read into the table: which faults it does not have, and why.
NOT_COVERED = (
    ("slow or lossy links", "need netem in the kernel"),
    ("a slow or wrong name server", "the hosts have addresses only"),
    ("a wall clock that jumps on all nodes at once", "the library of the scene serves one node"),
    ("accelerators: NCCL, a device that is lost, a kernel that hangs", "the machine has none"),
    ("shared file systems that block", "need a server of their own"),
    ("hosts with different software", "all hosts run the same files"),
    ("more than four nodes", "the machine has two cores"),
    ("kernel panics and reboots", "a host is a network namespace here"),
)
