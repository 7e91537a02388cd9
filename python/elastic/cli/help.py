"""The texts of ``--help`` and ``--help all``, from the table of options."""

from __future__ import annotations

import argparse

from elastic.cli.options import BY_NAME, GROUPS, PROGRAM, Option
from elastic.cli.subcommands import SUBCOMMANDS

# What --help shows, on one screen. "{}" is the option's default.
COMMON: dict[str, dict[str, str]] = {
    "Workers": {
        "nproc-per-node": "workers on this node: a number, gpu, cpu or auto (default {})",
        "module": "PROGRAM is a Python module, as for python -m",
        "no-python": "PROGRAM is an executable, started without Python",
        "warm": "restart without importing torch again: fork workers from one process",
        "numa-binding": "run each worker on the CPUs near its GPU",
    },
    "Nodes": {
        "standalone": "one node, which no other node can join",
        "nnodes": "number of nodes; with MIN:MAX nodes may join and leave (default {})",
        "rdzv-backend": "how nodes find each other: static or c10d (default {})",
        "rdzv-endpoint": "with c10d: one of the nodes, the same for all (default port 29400)",
        "rdzv-id": "with c10d: name of the job, the same on all nodes",
        "master-addr": "with static: the address of node 0",
        "node-rank": "with static: rank of this node, from 0",
        "token-file": "encrypt the launchers' traffic, and admit only nodes with this secret",
    },
    "Failures": {
        "max-restarts": "restart all workers up to N times after a failure (default {})",
        "shutdown-timeout": "time from SIGTERM to SIGKILL when workers are stopped (default 30)",
        "drain": "on SIGTERM let all ranks save at one step and exit; then stop them",
        "hang-action": "what to do about a hang: report, restart or fail (default {})",
    },
    "Output": {
        "log-dir": "directory for the files of --redirects and --tee",
        "redirects": "write to files: 1 stdout, 2 stderr, 3 both; or by rank: 0:3,1:1",
        "tee": "write to files and to the console; values as for --redirects",
        "event-log": "append one JSON line for each event of this node",
        "result-json": "write the result and the failure report at the end",
        "dry-run": "print what would be started, and start nothing",
    },
}
_COLUMN = 29


def text() -> str:
    """One screen: the options that most jobs need."""
    lines = [_USAGE]
    for title, shown in COMMON.items():
        lines += ["", f"{title}:"]
        for name, about in shown.items():
            option = BY_NAME[name]
            lines.append(_row(", ".join(_flags(option)), option, about.format(option.default)))
    lines += ["", "Other commands:"]
    for one in SUBCOMMANDS:
        if one.name != "help":
            lines.append(f"  {f'{PROGRAM} {one.name}':<{_COLUMN}}{one.help}")
    return "\n".join([*lines, "", _MORE])


def _row(flags: str, option: Option, about: str) -> str:
    left = f"{flags} {option.metavar}".rstrip()
    return f"  {left:<{_COLUMN}}{about}"


def _flags(option: Option) -> list[str]:
    long = f"--{option.name}"
    return [f"-{option.short}", long] if option.short else [long]


def full_text() -> str:
    """Every option, by subject."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options] PROGRAM [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_subcommands() + _NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    made.add_argument("-h", "--help", nargs="?", metavar="all", help="Print this, or one screen.")
    made.add_argument("--version", action="store_true", help="Print the version.")
    made.add_argument(
        "--print-completion", metavar="SHELL", help="Print a script that completes the options."
    )
    for title, group in GROUPS:
        section = made.add_argument_group(title)
        for option in group:
            shown = option.help + (f" Default: {option.default}." if option.default else "")
            if option.is_switch:
                section.add_argument(*_flags(option), action="store_true", help=shown)
            else:
                section.add_argument(*_flags(option), metavar=option.metavar, help=shown)
    return made.format_help()


def _subcommands() -> str:
    lines = [f"  {one.name:<14}{one.help}" for one in SUBCOMMANDS]
    return "\n".join([f"Subcommands ({PROGRAM} NAME --help):", *lines, "", ""])


_USAGE = f"""\
usage: {PROGRAM} [options] PROGRAM [ARGUMENT ...]

Starts the workers of a distributed PyTorch job on this node, and restarts the job when a worker
or a node fails. It takes torchrun's options; names may have dashes or underscores.

  {PROGRAM} --standalone --nproc-per-node=8 train.py             one node with 8 workers
  {PROGRAM} --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \\
      --rdzv-endpoint=node0 --rdzv-id=job7 train.py                 the same line on both nodes"""

_MORE = f"""\
{PROGRAM} --help all         every option and variable, by subject
{PROGRAM} help [TOPIC]       the manual: a list of its pages, or one page
"""

_DESCRIPTION = """\
Starts the workers of a distributed PyTorch job on this node, watches them, and starts all of
them again, on all nodes, when one fails or the nodes change. In PROGRAM and its arguments
${local_rank} stands for each worker's local rank.
"""

_NOTES = f"""\
Every option can also be given as a variable, PET_ and its name in capitals:
PET_NPROC_PER_NODE=8, PET_STANDALONE=1. The command line wins. Names may be written with dashes
or underscores.

Other variables that are read: PYTHON_EXEC (interpreter of the workers), LOGLEVEL (INFO logs each
change of state), OMP_NUM_THREADS (default for workers: usable CPUs divided by
workers), TORCH_NCCL_ASYNC_ERROR_HANDLING (default 1), TORCH_ELASTIC_SHUTDOWN_TIMEOUT,
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE (default "[${{role_name}}${{local_rank}}]:"),
TORCHELASTIC_ERROR_FILE (receives the error of the job's first failure), CUDA_VISIBLE_DEVICES.

Exit status: 0 if every worker succeeded; otherwise that of the worker that failed first, 128+N
if signal N killed it; 128+N after signal N to the launcher; 2 for bad usage; 70 to 79 for faults
of the launcher, its surroundings or other nodes; 80 if all ranks stopped at an agreed step,
81 if ranks still ran --straggler-timeout after another's exit ({PROGRAM} help exit-codes).
All nodes end with the same.
"""
