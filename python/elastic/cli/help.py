"""The text of ``--help``, from the table of options."""

from __future__ import annotations

import argparse

from elastic.cli.options import GROUPS, PROGRAM
from elastic.cli.subcommands import SUBCOMMANDS


def text() -> str:
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [options] PROGRAM [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_subcommands() + _NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version="")
    for title, group in GROUPS:
        section = made.add_argument_group(title)
        for option in group:
            flags = (
                [f"-{option.short}", f"--{option.name}"] if option.short else [f"--{option.name}"]
            )
            shown = option.help + (f" Default: {option.default}." if option.default else "")
            if option.is_switch:
                section.add_argument(*flags, action="store_true", help=shown)
            else:
                section.add_argument(*flags, metavar=option.metavar, help=shown)
    return made.format_help()


def _subcommands() -> str:
    lines = [f"  {one.name:<14}{one.help}" for one in SUBCOMMANDS]
    return "\n".join([f"Subcommands ({PROGRAM} NAME --help):", *lines, "", ""])


_DESCRIPTION = """\
Starts the workers of a distributed PyTorch job on this node, watches them, and starts all of
them again, on all nodes, when one fails or the nodes change. In PROGRAM and its arguments
${local_rank} stands for each worker's local rank.
"""

_NOTES = """\
Every option can also be given as a variable, PET_ and its name in capitals:
PET_NPROC_PER_NODE=8, PET_STANDALONE=1. The command line wins. Names may be written with dashes
or underscores.

Other variables that are read: PYTHON_EXEC (interpreter of the workers), LOGLEVEL (INFO logs each
change of state), OMP_NUM_THREADS (default for workers: usable CPUs divided by
workers), TORCH_NCCL_ASYNC_ERROR_HANDLING (default 1), TORCH_ELASTIC_SHUTDOWN_TIMEOUT,
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE (default "[${role_name}${local_rank}]:"),
TORCHELASTIC_ERROR_FILE (receives the error of the job's first failure), CUDA_VISIBLE_DEVICES.

Exit status: 0 if every worker succeeded; otherwise that of the worker that failed first, 128+N
if signal N killed it; 128+N after signal N to the launcher; 2 for bad usage; 70 to 79 for faults
of the launcher, its surroundings or other nodes; 80 if all ranks stopped at an agreed step,
81 if ranks still ran --straggler-timeout after another's exit (docs/exit-codes.md). All nodes
end with the same.
"""
