"""torch's older launcher: ``python -m elastic.launch`` is ``elastic-launch`` for older scripts.

Unless ``--use-env`` is given, the script gets its local rank as its first argument,
``--local-rank=N``, besides the variable ``LOCAL_RANK``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from elastic.cli.main import console_main
from elastic.run import get_args_parser, run

__all__ = ["launch", "main", "parse_args"]


def parse_args(args: Sequence[str] | None) -> Namespace:
    from elastic.cli import arguments
    from elastic.cli.options import USE_ENV

    parser = get_args_parser()
    arguments.add(parser, USE_ENV, ["--use-env", "--use_env"], False)
    return parser.parse_args(args)


def launch(args: Namespace) -> None:
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """As ``elastic.run.main``: raises if the job fails."""
    launch(parse_args(args))


if __name__ == "__main__":
    from functools import partial

    from elastic.cli import resolve

    console_main(partial(resolve.parse, is_legacy=True))
