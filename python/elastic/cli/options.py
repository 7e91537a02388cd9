"""The launcher's options: one table for the parser, the help text and the ``PET_*`` variables.

Values stay text here; ``elastic.cli.resolve`` checks them, so that a flag and its variable get the
same messages.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAM = "elastic-launch"
ENV_PREFIX = "PET_"


class Option(NamedTuple):
    """One option. Its value stays text until ``elastic.cli.resolve`` checks it."""

    name: str
    metavar: str  # "": a switch
    help: str
    default: str = ""
    short: str = ""

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.replace("-", "_").upper()

    @property
    def is_switch(self) -> bool:
        return not self.metavar


_WORKERS = (
    Option(
        "nproc-per-node",
        "N",
        "Workers on this node: a number; cpu, the CPUs that may be used here (affinity and cgroup "
        "quota); gpu or xpu, the visible devices; auto, the visible accelerators, or as cpu if "
        "there are none.",
        default="1",
    ),
    Option("role", "NAME", "The workers' role, in ROLE_NAME and line prefixes.", default="default"),
    Option("module", "", "PROGRAM is a Python module, started as by python -m.", short="m"),
    Option("no-python", "", "PROGRAM is an executable and starts without Python."),
    Option("run-path", "", "PROGRAM is a script, whatever --module and --no-python say."),
    Option(
        "virtual-local-rank",
        "",
        "Every worker sees one GPU, as device 0, and has LOCAL_RANK=0.",
    ),
    Option(
        "start-method",
        "METHOD",
        "spawn, fork or forkserver; accepted for torchrun's sake, no effect: PROGRAM is executed.",
        default="spawn",
    ),
    Option(
        "strict",
        "",
        "Options and PET_* variables that are unknown or have no effect are errors, not warnings.",
    ),
)

_FAILURES = (
    Option(
        "max-restarts",
        "N",
        "How many times the workers are restarted, all together and on all nodes, after one of "
        "them failed.",
        default="0",
    ),
    Option(
        "restart-backoff",
        "SECONDS",
        "Workers that fail within five seconds are restarted at once the first time, after this "
        "delay the second time in a row, then after twice as long each time, up to a minute. "
        "0: always at once.",
        default="1",
    ),
    Option(
        "on-node-loss",
        "WHAT",
        "If the loss of a node leaves fewer than MIN: replace waits up to join_timeout for "
        "another, fail ends the job.",
        default="replace",
    ),
    Option(
        "max-membership-changes",
        "N",
        "After so many changes of its nodes the job is not restarted to let more in. Default: no "
        "limit.",
    ),
    Option(
        "start-timeout",
        "SECONDS",
        "How long a worker may take until its program is executed. A worker that hangs on a mount "
        "that does not respond is killed, and the path is reported.",
        default="60",
    ),
    Option(
        "shutdown-timeout",
        "SECONDS",
        "From SIGTERM to SIGKILL whenever workers are stopped; default "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30.",
    ),
    Option(
        "failure-grace",
        "SECONDS",
        "The same where workers are stopped because another one failed; default "
        "--shutdown-timeout.",
    ),
    Option(
        "exit-barrier-timeout",
        "SECONDS",
        "How long a node whose workers all succeeded waits for those of other nodes. Default: as "
        "long as there are any.",
    ),
    Option(
        "stop-scope",
        "WHO",
        "Who gets the signal that asks to stop: group, the workers and their children, or leader, "
        "the workers alone. What is left after the shutdown timeout is killed in either case.",
        default="group",
    ),
    Option(
        "signals-to-handle",
        "NAMES",
        "Signals that end the job in an orderly way: the workers get them and have the shutdown "
        "timeout; a second signal kills at once. One that was ignored at the start (nohup) stays "
        "ignored.",
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Option(
        "monitor-interval",
        "SECONDS",
        "Checked and otherwise without effect: the launcher learns of an exit when it happens.",
        default="0.1",
    ),
)

_OUTPUT = (
    Option(
        "log-dir",
        "DIR",
        "Where log and error files go: DIR/RUN-ID_RANDOM/attempt_N/LOCAL-RANK/. Without it nothing "
        "is left on the disk, except that --redirects makes a folder in the temporary directory "
        "and names it.",
    ),
    Option(
        "redirects",
        "WHICH",
        "Streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as in "
        "0:3,1:1.",
        default="0",
        short="r",
    ),
    Option(
        "tee",
        "WHICH",
        "Streams that go to files and, whole lines with a prefix, to the console; as --redirects.",
        default="0",
        short="t",
    ),
    Option(
        "no-stderr-capture",
        "",
        "Workers get the launcher's own stderr, and the report of a failure has no lines from it.",
    ),
    Option(
        "local-ranks-filter",
        "RANKS",
        "Local ranks, as in 0,3, whose output reaches the console; that of the others does not.",
    ),
    Option(
        "log-line-prefix-template",
        "TEXT",
        "The prefix of lines that --tee copies, with ${role_name}, ${rank}, ${local_rank}, "
        "${hostname}, ${round} and ${time}. Default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
        "[${role_name}${local_rank}]:",
    ),
    Option(
        "merge-lines",
        "",
        "--tee copies an identical line of several ranks once, with their ranks as a range. A line "
        "waits up to 0.2 s for the other ranks.",
    ),
    Option(
        "duplicate-stdout-filters",
        "WORDS",
        "Lines of stdout that contain one of these words, separated by commas, are also written to "
        "filtered_stdout.log in the round's log directory. Needs --tee or --redirects.",
    ),
    Option(
        "duplicate-stderr-filters",
        "WORDS",
        "The same for stderr and filtered_stderr.log.",
    ),
)

_NODES = (
    Option(
        "nnodes",
        "N or MIN:MAX",
        "Nodes of the job: a fixed number, or a range within which nodes may come and go.",
        default="1",
    ),
    Option(
        "rdzv-backend",
        "NAME",
        "How nodes find each other: c10d, a coordinator at the endpoint, which one of the agents "
        "runs; static, the same with the rank of every node given; file, etcd, or a plug-in's "
        "name, a state that the nodes share.",
        default="static",
    ),
    Option(
        "rdzv-endpoint",
        "HOST[:PORT]",
        "Where they meet, the same on every node: an address of one of them, or of an "
        "elastic-coordinator (default port 29400); a path for file. With static it is "
        "--master-addr and --master-port.",
    ),
    Option(
        "rdzv-id",
        "ID",
        "The job's name, in TORCHELASTIC_RUN_ID and log paths, and what tells jobs at one "
        "endpoint apart. Default: random on one node, none on several.",
    ),
    Option(
        "rdzv-conf",
        "KEY=VALUE,...",
        "Timings and other settings of the rendezvous: join_timeout, last_call_timeout, settle, "
        "shrink_delay, node_timeout, reconnect_grace, store_grace, is_host (docs/cli.md).",
    ),
    Option(
        "node-rank",
        "N",
        "This node's rank, from 0, with static; else a wish, for a node that has no rank yet.",
        default="0",
    ),
    Option(
        "master-addr",
        "HOST",
        "With static, the address of node 0. On one node, where the workers' store listens.",
        default="127.0.0.1",
    ),
    Option(
        "master-port",
        "PORT",
        "MASTER_PORT in every round. Default: a free one in each round; 29500 with static on "
        "several nodes.",
    ),
    Option(
        "local-addr",
        "HOST",
        "Where other nodes reach this one, as MASTER_ADDR if it has rank 0. Default: the address "
        "from which it reaches the endpoint.",
    ),
    Option(
        "worker-port-range",
        "FIRST:LAST",
        "Ports from which that of the workers' store is taken.",
    ),
    Option(
        "topology",
        "TEXT",
        "A hint, such as a rack's name: nodes whose texts sort together get neighbouring ranks.",
    ),
    Option(
        "standalone",
        "",
        "The job has one node and no other node can join it: --rdzv-backend and --rdzv-endpoint "
        "are ignored.",
    ),
)

# Options of torchrun that are rejected with a message, because they cannot have their effect.
UNAVAILABLE = {
    "numa-binding": "bind the workers with numactl or taskset and --no-python",
    "event-log-handler": "LOGLEVEL=INFO logs every change of state to stderr",
    "logs-specs": "--log-dir, --redirects and --tee choose the files",
}
# Values of them that are accepted, because they describe the behaviour here.
HARMLESS = {"event-log-handler": "null", "logs-specs": "default"}

GROUPS = (
    ("Workers", _WORKERS),
    ("Nodes", _NODES),
    ("Failures and signals", _FAILURES),
    ("Output", _OUTPUT),
)

OPTIONS: tuple[Option, ...] = tuple(
    [option for _, group in GROUPS for option in group]
    + [Option(name, "VALUE", "", default=HARMLESS.get(name, "")) for name in UNAVAILABLE]
)
BY_NAME = {option.name: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}
