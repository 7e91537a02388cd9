"""The launcher's options: one table, from which everything else about an option follows.

The parser, ``--help``, the ``PET_*`` variables, the lists of ``docs/cli.md`` (by
``tools/gen_options_page.py``) and the settings that go to the native agent unchanged are derived
from it. Values stay text until ``elastic.cli.resolve`` reads them, so that a flag and its variable
get the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from elastic.cli.values import (
    Line,
    buddies,
    choice,
    duration,
    exit_codes,
    given_count,
    given_size,
    lines,
    positive_duration,
    short,
    switch,
    text,
)
from elastic.constants import (
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_INPLACE_GRACE_S,
    DEFAULT_LINE_PREFIX,
    DEFAULT_NODE_CHECK_TIMEOUT_S,
    DEFAULT_ROLE,
    DEFAULT_SHUTDOWN_TIMEOUT_S,
    DEFAULT_SIGNALS,
    DEFAULT_START_TIMEOUT_S,
    NUMA_MODES,
    START_METHODS,
)
from elastic.multiprocessing.logs import parse_words

PROGRAM = "elastic-launch"
ENV_PREFIX = "PET_"

# An abbreviation that is unambiguous for torchrun means the same here.
OF_TORCHRUN = frozenset((
    "duplicate-stderr-filters", "duplicate-stdout-filters", "event-log-handler", "local-addr",
    "local-ranks-filter", "log-dir", "log-line-prefix-template", "logs-specs", "master-addr",
    "master-port", "max-restarts", "module", "monitor-interval", "nnodes", "no-python",
    "node-rank", "nproc-per-node", "numa-binding", "rdzv-backend", "rdzv-conf", "rdzv-endpoint",
    "rdzv-id", "redirects", "role", "run-path", "shutdown-timeout", "signals-to-handle",
    "standalone", "start-method", "tee", "virtual-local-rank",
))  # fmt: skip

SAME = "as the default"  # of ``torch_default``


class Option(NamedTuple):
    """One option; ``metavar`` is "" for a switch. Texts mark code with backquotes."""

    name: str
    metavar: str
    help: str
    more: str = ""  # what only docs/cli.md has, in Markdown
    default: str = ""
    unset: str = ""  # in words, what applies without the option if it has no default
    short: str = ""
    brief: str = ""  # the line in the short help, where {} is the default; "": it is not there
    choices: tuple[str, ...] = ()
    # The attribute of torch's namespace: its type, and its default as text, or SAME; None: None.
    type: Callable[[str], Any] = str
    torch_default: str | None = None
    # No effect with the agents of plug-ins (a rendezvous handler or log files of another
    # distribution).
    needs_native: bool = False
    # The field of ``_C.AgentOptions``, or of ``_C.RendezvousOptions``, that gets the value;
    # ``read`` returns None for its default.
    native: str = ""
    rendezvous: str = ""
    read: Callable[[Line, str], Any] | None = None
    repeats: bool = False  # given several times it has several lines, as its variable may have

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.attribute.upper()

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return not self.metavar

    @property
    def attribute_default(self) -> Any:
        if self.is_switch:
            return False
        text = self.default if self.torch_default == SAME else self.torch_default
        return None if text is None else self.type(text)

    @property
    def about(self) -> str:
        """The help with the default, for a terminal."""
        default = self.default or self.unset
        return (self.help + (f" Default: {default}." if default else "")).replace("`", "")

    @property
    def flags(self) -> list[str]:
        long = f"--{self.name}"
        return [f"-{self.short}", long] if self.short else [long]


def words(given: str) -> list[str]:
    return list(parse_words(given))


# fmt: off
_WORKERS = (
    Option("nproc-per-node", "N",
        "Workers on this node: a number; `gpu` or `xpu`, one per visible device; `cpu`, one per "
        "usable CPU (affinity mask and cgroup quota); `auto`, one per accelerator, else as `cpu`.",
        default="1", torch_default=SAME,
        brief="workers per node, or gpu, cpu, auto (default {})"),
    Option("module", "",
        "PROGRAM is a Python module, as for `python -m`.",
        short="m", brief="PROGRAM is a Python module, as for python -m"),
    Option("no-python", "",
        "PROGRAM is an executable and is started without Python.",
        more="Without a slash it is searched in `PATH`.",
        brief="PROGRAM is an executable, not a Python script"),
    Option("warm", "",
        "One process per node imports modules and forks the workers, so that a restart needs no "
        "imports (elastic-launch help warm-workers).",
        needs_native=True,
        brief="restart in milliseconds: torch stays imported"),
    Option("numa-binding", "MODE",
        "Run each worker on the CPUs near the GPU of its local rank: those of its NUMA `node` or "
        "its `socket`, an `exclusive` share of the node's cores, or the cores of one last-level "
        "cache (`core-complex`).",
        more="See [NUMA binding](#numa-binding).",
        choices=NUMA_MODES, brief="run each worker on the CPUs near its GPU"),
    Option("preload", "MODULES",
        "The modules that `--warm` imports, as in `torch,numpy`; implies `--warm`.",
        unset="torch with what a first training step imports, and the installed modules that the "
        "script imports at its top level",
        needs_native=True),
    Option("run-path", "",
        "PROGRAM is a script; `--module` and `--no-python` are ignored."),
    Option("role", "NAME",
        "Name of the workers in `ROLE_NAME` and line prefixes.",
        more=f"An empty name means `{DEFAULT_ROLE}`.",
        default=DEFAULT_ROLE, torch_default=SAME),
    Option("virtual-local-rank", "",
        "Each worker sees one GPU, as device 0, and has `LOCAL_RANK=0`.",
        more="It gets one entry of `HIP_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES`."),
    Option("start-method", "METHOD",
        "`spawn`, `fork` or `forkserver`. Accepted for compatibility, no effect: PROGRAM is "
        "executed.",
        default="spawn", choices=START_METHODS, torch_default=SAME),
)

_NODES = (
    Option("standalone", "",
        "The job has one node and no other node can join it: `--rdzv-backend` and "
        "`--rdzv-endpoint` are ignored.",
        brief="one node, which no other node can join"),
    Option("nnodes", "N or MIN:MAX",
        "Number of nodes, or a range within which nodes may join and leave. `auto`: from Slurm or "
        "Kubeflow.",
        more="See [values from a scheduler](#values-from-a-scheduler).",
        default="1", torch_default="1:1",
        brief="number of nodes, or from MIN to MAX (default {})"),
    Option("rdzv-backend", "NAME",
        "How the nodes find each other: `c10d`, at the endpoint, where one of the agents or an "
        "elastic-coordinator listens; `static`, the same with given ranks; `file` or `etcd`, in a "
        "shared store; or the name of a plug-in.",
        more="See [several nodes](#several-nodes).",
        default="static", torch_default=SAME,
        brief="the rendezvous: static or c10d (default {})"),
    Option("rdzv-endpoint", "HOST[:PORT]",
        "Address of the rendezvous, the same on every node; the default port is 29400. With "
        "`c10d` further addresses may follow, separated by commas, at which the job is found when "
        "the first host is gone. A path for `file`. `auto` or `auto:PORT`: the first node of the "
        "Slurm or Kubernetes job.",
        more="See [nodes that join later](high-availability.md#nodes-that-join-later).",
        torch_default="",
        brief="with c10d: one of the nodes (default port 29400)"),
    Option("rdzv-id", "ID",
        "The run id: names the job in `TORCHELASTIC_RUN_ID` and log paths, and separates jobs at "
        "one endpoint. `auto`: from the Slurm or Kubernetes job.",
        unset="random on one node, none on several",
        torch_default="none", brief="with c10d: the job's name, the same on all nodes"),
    Option("master-addr", "HOST",
        "With `static`, the address of node 0, or `auto`. On one node, the address at which the "
        "workers' store listens.",
        default="127.0.0.1", torch_default=SAME, brief="with static: the address of node 0"),
    Option("node-rank", "N",
        "Rank of this node, from 0, with `static`; otherwise a preferred rank, used for the first "
        "assignment. `auto`: from Slurm or Kubernetes.",
        default="0", type=int, torch_default=SAME, brief="with static: rank of this node, from 0"),
    Option("token-file", "FILE",
        "A file with the job's token, a secret of all nodes and the coordinator: only processes "
        "that know it can take part, and their sessions are encrypted. Other users must not be "
        "able to read it (elastic-launch help security).",
        unset="`ELASTIC_TOKEN_FILE`, else the token in `ELASTIC_TOKEN`",
        brief="encrypt, and admit only nodes with this secret"),
    Option("rdzv-conf", "KEY=VALUE,...",
        "Settings of the rendezvous: `join_timeout`, `last_call_timeout`, `settle`, "
        "`shrink_delay`, `node_timeout`, `reconnect_grace`, `store_grace`, `is_host`, `voters` "
        "(elastic-launch help cli).",
        torch_default=""),
    Option("master-port", "PORT",
        "`MASTER_PORT` in every round.",
        unset="a free port in each round; with `static` on several nodes 29500",
        type=int),
    Option("local-addr", "HOST",
        "Address at which other nodes reach this one.",
        unset="the local address of its connection to the endpoint"),
    Option("iface", "NAME",
        "Network interface, as `eth1`, that has the address at which other nodes reach this one. "
        "Workers also get `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME`, unless they are set.",
        more="See [hosts with several networks](#hosts-with-several-networks)."),
    Option("subnet", "CIDR",
        "Network, as `10.1.0.0/16`, that contains the address at which other nodes reach this "
        "one; otherwise the same as `--iface`."),
    Option("reach-timeout", "SECONDS",
        "How long a node may take to reach the workers' store on the node of rank 0. After that "
        "its workers count as failed, and the message names both hosts.",
        more="0 disables the test, for workers on a separate network.",
        default="30", native="reach_timeout", read=duration, needs_native=True),
    Option("worker-port-range", "FIRST:LAST",
        "Range of ports for the workers' store, for firewalls.",
        needs_native=True),
    Option("voter-port-range", "FIRST:LAST",
        "Range of ports, for firewalls, at which nodes keep the job's record and run its "
        "coordinator; two for each agent of a host (elastic-launch help high-availability)."),
    Option("topology", "TEXT",
        "Sort key such as the name of a rack: nodes with equal texts get adjacent ranks.",
        rendezvous="topology", read=short, needs_native=True),
)

_FAILURES = (
    Option("max-restarts", "N",
        "The restart budget: how often the workers of all nodes are restarted after a worker "
        "failed.",
        default="0", type=int, torch_default=SAME,
        brief="restarts of all workers (default {})"),
    Option("restart-backoff", "SECONDS",
        "Delay of the second restart in a row after workers failed within 5 s of their start; "
        "each further one has twice the delay, up to a minute. 0: no delay.",
        more="0 also disables the delay of nodes that join after others were lost within a "
        "minute. The first node's value applies to the job.",
        default="1", native="restart_backoff", read=duration, needs_native=True),
    Option("no-restart-codes", "CODES",
        "Exit codes of a worker after which the job ends, even if restarts are left, as in "
        "`3,64-78`. 128+N stands for signal N.",
        more="All nodes end with that code.",
        unset="none", native="no_restart_codes", read=exit_codes, needs_native=True),
    Option("bad-node-codes", "CODES",
        "Exit codes of a worker that mark its node as bad. The node leaves the job with that "
        "code; the other nodes continue, with a spare if there is one.",
        more="A restart is charged only if fewer than MIN nodes are left. A "
        "[script can test](scripts.md#let-a-bad-node-leave) its devices this way.",
        unset="none", native="bad_node_codes", read=exit_codes, needs_native=True),
    Option("node-check", "COMMAND",
        "Test this host before it joins, and after a failure of its workers, beside their stop: "
        "exit code 0 is good, 1 and 2 are bad, others unknown. A bad node does not join, or leaves "
        "the job, with exit code 79. Built in: `gpu`, `network` (all nodes, in pairs, before the "
        "first round), and `unix://PATH` (nvhcd). May be given several times (elastic-launch help "
        "policy).",
        more="`PET_NODE_CHECK` has one command in each line.",
        unset="none", native="node_checks", read=lines, needs_native=True, repeats=True),
    Option("node-check-timeout", "SECONDS",
        "After it a check is killed, with all of its processes, and its verdict is unknown.",
        default=f"{DEFAULT_NODE_CHECK_TIMEOUT_S:g}", native="node_check_timeout",
        read=positive_duration, needs_native=True),
    Option("failure-policy", "FILE",
        "A TOML file with [rules](policy.md) for what follows a failure, by exit code, signal, "
        "class, error, hang or lost node: the job stops, or restarts, charged or not. The first "
        "rule that matches decides.",
        more="All nodes need equal rules.",
        unset="none", needs_native=True),
    Option("on-exclude", "COMMAND",
        "Runs COMMAND with `sh -c` for each [excluded host](policy.md#excluded-hosts), where the "
        "coordinator runs, with the host and the reason in its environment.",
        more="After a minute its process group is killed.",
        unset="none", rendezvous="on_exclude", read=text, needs_native=True),
    Option("on-node-loss", "WHAT",
        "When fewer than MIN nodes remain after a loss: `replace` waits up to `join_timeout` for "
        "another node, `fail` ends the job.",
        default="replace", choices=("replace", "fail"), rendezvous="on_loss", read=choice,
        needs_native=True),
    Option("max-membership-changes", "N",
        "After this number of membership changes the job is not restarted for new nodes.",
        unset="no limit", rendezvous="max_membership_changes", read=given_count,
        needs_native=True),
    Option("start-timeout", "SECONDS",
        "Limit until a worker's program is executed: on a mount that does not respond the worker "
        "is killed, and the path is reported.",
        default=f"{DEFAULT_START_TIMEOUT_S:g}", native="start_timeout", read=positive_duration,
        needs_native=True),
    Option("shutdown-timeout", "SECONDS",
        "Grace period from SIGTERM to SIGKILL whenever workers are stopped.",
        unset=f"`TORCH_ELASTIC_SHUTDOWN_TIMEOUT`, or {DEFAULT_SHUTDOWN_TIMEOUT_S:g}",
        type=float, brief="time from SIGTERM to SIGKILL "
        f"(default {DEFAULT_SHUTDOWN_TIMEOUT_S:g})"),
    Option("failure-grace", "SECONDS",
        "Grace period when workers are stopped because another worker failed.",
        more="See [the workers stop](#the-workers-stop).",
        unset="`--shutdown-timeout`", native="failure_grace", read=duration, needs_native=True),
    Option("leftover-grace", "SECONDS",
        "How long processes that the workers of a node left running, such as an upload, may take "
        "to end when all of these workers have succeeded. Then they are killed.",
        more="A stop or a restart ends the wait. See [supervision](supervision.md#stopping).",
        default="0", native="leftover_grace", read=duration, needs_native=True),
    Option("on-membership-change", "WHAT",
        "What happens when a node or a worker is lost or a node joins: `restart`, all workers "
        "start again; `inplace`, nodes that lost none keep those of a script that uses "
        "`elastic.torch.membership` (elastic-launch help in-place).",
        default="restart", choices=("restart", "inplace"), needs_native=True),
    Option("inplace-grace", "SECONDS",
        "With `--on-membership-change=inplace`: the time in which the workers of a node must "
        "leave their collectives; then they are started again, as with `restart`.",
        unset=f"{DEFAULT_INPLACE_GRACE_S:g}", needs_native=True),
    Option("inplace-prepare", "SECONDS",
        "With `--on-membership-change=inplace`: start this node's workers before it joins. It "
        "joins when all of them wait in `elastic.torch.membership`; after SECONDS it stops them "
        "and joins anyway. The script must not use a rank before.",
        unset="off: the workers start with the round",
        more="See [a node joins](in-place.md#a-node-joins).", needs_native=True),
    Option("exit-barrier-timeout", "SECONDS",
        "How long a node whose workers all succeeded waits for the other nodes.",
        unset="no limit", native="exit_barrier_timeout", read=duration),
    Option("stop-scope", "WHO",
        "Receivers of the signal that begins a stop: `group`, the workers and their children; "
        "`leader`, only the workers; `handler`, only those workers that are Python processes with "
        "a handler for the signal, whose children get it when they have ended, and of the others "
        "the children, too. SIGKILL always goes to all of them.",
        default="handler", choices=("handler", "group", "leader"), native="stop_scope", read=choice,
        needs_native=True),
    Option("signals-to-handle", "NAMES",
        "Signals to the launcher that stop the workers in an orderly way. A second one shortens "
        "the wait to 5 s, a third kills them. A signal that was ignored at the start (`nohup`) "
        "remains ignored.",
        default=DEFAULT_SIGNALS, torch_default=SAME),
    Option("forward-signals", "NAMES",
        "Signals to the launcher, such as `USR1`, that are passed on to the workers, not to their "
        "children, and stop nothing.",
        more="The signal kills a worker that has no handler for it."),
    Option("drain", "SECONDS",
        "SIGTERM to any launcher of the job stops all ranks at one step: `should_stop()` of "
        "`elastic.worker` returns True, the ranks save their state and exit, and the job ends with "
        "exit code 80. Without an agreement after SECONDS, or at a second signal, the workers are "
        "stopped as usual (elastic-launch help preemption).",
        brief="on SIGTERM all ranks save at one step and exit"),
    Option("drain-signal", "NAME",
        "A signal such as `USR1` that stops all ranks at one step, instead of SIGTERM. Without "
        f"`--drain` the limit is {DEFAULT_DRAIN_TIMEOUT_S:g} s."),
    Option("hang-timeout", "SECONDS",
        "The job hangs when no rank has completed a step for this long; applies once a script "
        "has reported a step (elastic-launch help hangs).",
        unset="learned from the pauses between steps, at least a minute, and only reported",
        native="hang_timeout", read=positive_duration, needs_native=True),
    Option("hang-action", "WHAT",
        "What happens to a job that hangs: `report`, the stacks of all ranks and the suspected "
        "rank are logged on every node; `restart`, and that rank counts as failed; `fail`, and "
        "the job ends.",
        default="report", choices=("report", "restart", "fail"), native="hang_action", read=choice,
        needs_native=True, brief="hangs: report, restart or fail (default {})"),
    Option("straggler-timeout", "SECONDS",
        "After the first rank of the job has exited with 0, the others have this long to end. "
        "Then their stacks are logged on every node, they are stopped, and the job fails "
        "with exit code 81.",
        more="See [ranks that run on](hangs.md#ranks-that-run-on).",
        unset="no limit", native="straggler_timeout", read=positive_duration, needs_native=True),
    Option("snapshot-buddy", "on|off|N",
        "Snapshots of this node's ranks are copied to another node of the job (N: to so many), "
        "so that a lost node costs no more steps than a killed worker (elastic-launch help "
        "snapshots).",
        default="on", choices=("on", "off"), native="snapshot_buddies", read=buddies,
        needs_native=True),
    Option("snapshot-rate", "SIZE",
        "How fast this node sends these copies, in bytes a second, as in `500M`; 0: no limit.",
        unset="128M", native="snapshot_rate", read=given_size, needs_native=True),
    Option("snapshot-memory", "SIZE",
        "The memory of this node for the copies of another one, as in `64G`.",
        unset="what the host has", native="snapshot_memory", read=given_size, needs_native=True),
    Option("stacks-on-failure", "",
        "Before workers are stopped because another one failed or a node was lost, their stacks "
        "are written to `stacks.txt` of the round in `--log-dir`, or logged without `--log-dir`. "
        "Delays the stop, by two seconds at most.",
        more="See [stacks before a stop](hangs.md#stacks-before-a-stop).",
        native="stacks_on_failure", read=switch, needs_native=True),
    Option("auto-progress", "",
        "Reports each step of a torch optimizer until the script reports a step itself. Without "
        "the option that is done only if the script does not import `elastic.worker`.",
        needs_native=True),
    Option("no-auto-progress", "",
        "Starts Python without the launcher's hook: nothing is reported for a script that does not "
        "import `elastic.worker`.",
        more="`ELASTIC_AUTO_PROGRESS=0` does the same. See [what a plain start "
        "shows](hangs.md#what-a-plain-start-shows)."),
    Option("monitor-interval", "SECONDS",
        "Accepted for compatibility, no effect: the launcher is notified of an exit.",
        default="0.1", type=float, torch_default=SAME),
)

_OUTPUT = (
    Option("log-dir", "DIR",
        "Log and error files are written to `DIR/RUN-ID_HOST_RANDOM/attempt_N/LOCAL-RANK/`. "
        "Without it no file remains, but for `--redirects`, which prints a temporary path.",
        brief="directory for the files of --redirects and --tee"),
    Option("redirects", "WHICH",
        "Streams that are written to files: `0` none, `1` stdout, `2` stderr, `3` both, or by "
        "local rank as in `0:3,1:1`.",
        default="0", short="r", torch_default=SAME,
        brief="to files: 1 stdout, 2 stderr, 3 both; or 0:3,1:1"),
    Option("tee", "WHICH",
        "Streams that are written to files and copied to the console, line by line with a "
        "prefix; values as for `--redirects`.",
        default="0", short="t", torch_default=SAME,
        brief="to files and the console, as for --redirects"),
    Option("log-max-bytes", "SIZE",
        "Limit of the size of each `stdout.log` and `stderr.log`, as in `500M`: a full one is "
        "renamed to `stdout.log.1`, and so on, and the oldest is removed.",
        more="See [limits of log files](#limits-of-log-files).",
        unset="no limit", needs_native=True),
    Option("log-max-files", "N",
        "With `--log-max-bytes`: how many files of each stream are kept, with the current one "
        "included.",
        default="5", needs_native=True),
    Option("local-ranks-filter", "RANKS",
        "Local ranks whose output is copied to the console, as in `0,3`.",
        more="The failure report has the last lines of every rank.",
        unset="all", torch_default=""),
    Option("no-stderr-capture", "",
        "Workers inherit the launcher's stderr, and the failure report has no lines from it.",
        more="See [output that is inherited](supervision.md#output-that-is-inherited).",
        needs_native=True),
    Option("event-log-handler", "NAME",
        "Where events of the job are recorded: `null`, nowhere, or `console`, as JSON lines on "
        "stderr.",
        default="null", torch_default=SAME),
    Option("log-line-prefix-template", "TEXT",
        "The prefix of lines that `--tee` copies, with `${role_name}`, `${rank}`, "
        "`${local_rank}`, `${hostname}`, `${round}` and `${time}`.",
        more="See [lines on the console](#lines-on-the-console).",
        unset=f"`TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`, else `{DEFAULT_LINE_PREFIX}`",
        torch_default=""),
    Option("merge-lines", "",
        "`--tee` copies an identical line of several ranks once, with their ranks as a range. A "
        "line waits up to 0.2 s for the other ranks.",
        needs_native=True),
    Option("logs-specs", "NAME",
        "A plug-in that chooses the log files: the entry point of this name in the group "
        "`torchrun.logs_specs`. The job then runs without the native agent, and a warning lists "
        "the given options that have no effect.",
        more="See [several nodes](#several-nodes).",
        default="default"),
    Option("event-log", "FILE",
        "Append one JSON line for each transition of this node to FILE (elastic-launch help "
        "observing).",
        brief="append one JSON line for each event of this node"),
    Option("metrics-port", "PORT",
        "Serve this node's metrics for Prometheus on PORT (needs the package "
        "`prometheus_client`)."),
    Option("result-json", "FILE",
        "The result of the job, and the failure report as data, are written to this file at the "
        "end.",
        more="See [the result as JSON](#the-result-as-json).",
        brief="write the result and the failure report"),
    Option("duplicate-stdout-filters", "WORDS",
        "Lines of stdout that contain one of these words, separated by commas, are also written "
        "to `filtered_stdout.log`. Needs `--tee` or `--redirects`.",
        more="In a word `,,` is a comma.",
        type=words, torch_default=""),
    Option("duplicate-stderr-filters", "WORDS",
        "The same for stderr and `filtered_stderr.log`.",
        type=words, torch_default=""),
)

_CHECKS = (
    Option("dry-run", "",
        "Print what would be started and how, and start nothing.",
        more="All settings are checked.",
        brief="print what would be started, and start nothing"),
    Option("strict", "",
        "Unknown `PET_*` variables, and options and variables without effect, are errors instead "
        "of warnings."),
)

# fmt: on

GROUPS = (
    ("Workers", _WORKERS),
    ("Nodes", _NODES),
    ("Failures and signals", _FAILURES),
    ("Output", _OUTPUT),
    ("Checks", _CHECKS),
)

OPTIONS: tuple[Option, ...] = tuple(option for _, group in GROUPS for option in group)
BY_NAME = {option.name: option for option in OPTIONS}
BY_VARIABLE = {option.variable: option for option in OPTIONS}
BY_SHORT = {option.short: option for option in OPTIONS if option.short}

# ``python -m elastic.launch`` has this option too.
USE_ENV = Option("use-env", "", "Pass the local rank only in LOCAL_RANK, as elastic-launch does.")

# Options that print a text and end the program, with the metavar of their value.
TEXTS = {"help": "", "version": "", "print-completion": "SHELL"}


def shells() -> Sequence[str]:
    """What --print-completion accepts: what the installed shtab can write."""
    try:
        from shtab import SUPPORTED_SHELLS
    except ImportError:
        return ("bash", "zsh", "tcsh")
    return tuple(SUPPORTED_SHELLS)
