"""The texts of ``--help`` and ``--help all``, from the table of options."""

from __future__ import annotations

import argparse

from elastic.cli import arguments
from elastic.cli.options import GROUPS, PROGRAM
from elastic.cli.subcommands import SUBCOMMANDS

_COLUMN = 29


def text() -> str:
    """One screen: the options that most jobs need."""
    lines = [_USAGE]
    for title, group in GROUPS:
        lines += ["", f"{title}:"]
        for option in filter(lambda option: option.brief, group):
            left = f"{', '.join(option.flags)} {option.metavar}".rstrip()
            lines.append(f"  {left:<{_COLUMN}}{option.brief.format(option.default)}")
    lines += ["", "Other commands:"]
    for one in SUBCOMMANDS:
        if one.name != "help":
            lines.append(f"  {f'{PROGRAM} {one.name}':<{_COLUMN}}{one.help}")
    return "\n".join([*lines, "", _MORE])


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
            arguments.add(section, option, option.flags, None)
    return made.format_help()


def _subcommands() -> str:
    lines = [f"  {one.name:<14}{one.help}" for one in SUBCOMMANDS]
    return "\n".join([f"Subcommands ({PROGRAM} NAME --help):", *lines, "", ""])


_USAGE = f"""\
usage: {PROGRAM} [options] PROGRAM [ARGUMENT ...]

Starts the workers of a distributed PyTorch job on this node, and restarts the
job when a worker or a node fails. It takes torchrun's options; names may have
dashes or underscores.

One node with 8 workers, and the same line on each of two nodes:
  {PROGRAM} --standalone --nproc-per-node=8 train.py
  {PROGRAM} --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d \\
      --rdzv-endpoint=node0 --rdzv-id=job7 train.py"""

_MORE = f"""\
{PROGRAM} --help all         every option and variable, by subject
{PROGRAM} help [TOPIC]       the manual: a list of its pages, or one page
"""

_DESCRIPTION = """\
Starts the workers of a distributed PyTorch job on this node, watches them, and restarts all of
them, on all nodes, when one fails or the nodes change. In PROGRAM and its arguments
${local_rank} stands for each worker's local rank.
"""

_NOTES = f"""\
Every option can also be given as a variable, PET_ and its name in capitals:
PET_NPROC_PER_NODE=8, PET_STANDALONE=1. The command line takes precedence. Names may have dashes or
underscores.

Other variables that are read: PYTHON_EXEC (interpreter of the workers), LOGLEVEL (INFO logs each
change of state), OMP_NUM_THREADS (default for workers: usable CPUs divided by
workers), TORCH_NCCL_ASYNC_ERROR_HANDLING (default 1), TORCH_ELASTIC_SHUTDOWN_TIMEOUT,
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE (default "[${{role_name}}${{local_rank}}]:"),
TORCHELASTIC_ERROR_FILE (receives the error of the job's first failure), CUDA_VISIBLE_DEVICES.

Exit status: 0 if every worker succeeded; otherwise that of the worker that failed first, 128+N
if signal N killed it; 128+N after signal N to the launcher; 2 for bad usage; 70 to 82 for faults
of the launcher, its surroundings or other nodes; 80 if all ranks stopped at an agreed step,
81 if ranks still ran --straggler-timeout after another's exit ({PROGRAM} help exit-codes).
All nodes end with the same.
"""
