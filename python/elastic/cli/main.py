"""The command ``elastic-launch``: parse, run, report. The only module that prints.

What is imported at the top is all that is loaded before the first instruction of ``console_main``;
everything else waits until the signals are in order.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from elastic.agent.server.api import RunResult
    from elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from elastic.cli.config import LaunchConfig


def console_main() -> None:
    # Before there is an agent there is nothing to stop, so every signal may do what it does to any
    # program: end it. Python alone would make a traceback of Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.exit(main())
    except Exception as error:
        from elastic._C import EXIT_INTERNAL

        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(EXIT_INTERNAL) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job that the command line describes; the result is the exit status.

    Must be called from the main thread, since it installs signal handlers. ``--help`` and
    ``--version`` end by SystemExit, as with every argparse program.
    """
    from elastic import _C
    from elastic.cli import resolve
    from elastic.cli.options import PROGRAM
    from elastic.errors import ConfigError, ElasticError

    try:
        return _launch(resolve.parse(sys.argv[1:] if argv is None else argv, os.environ))
    except ConfigError as error:
        _say(f"{PROGRAM}: {error}")
        return _C.EXIT_USAGE
    except ElasticError as error:
        _say(f"{PROGRAM}: {error}")
        return _C.EXIT_INTERNAL


def _launch(job: LaunchConfig) -> int:
    import logging

    from elastic.agent.server.api import WorkerSpec
    from elastic.agent.server.local_elastic_agent import LocalElasticAgent

    logging.basicConfig(
        level=job.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logger = logging.getLogger(__name__)
    for level, sentence in job.notes:
        logger.log(level, "%s", sentence)
    logs = job.logs
    if logs.redirects_any and logs.log_dir is None:
        import tempfile

        logs = logs._replace(log_dir=tempfile.mkdtemp(prefix="elastic_"))
        logger.warning("the workers' output goes to files in %s", logs.log_dir)
    agent = LocalElasticAgent(
        WorkerSpec(
            role=job.role,
            local_world_size=job.nproc,
            entrypoint=job.entrypoint[0],
            args=job.entrypoint[1:],
            run_id=job.run_id,
            max_restarts=job.max_restarts,
            master_port=job.master_port,
            master_addr=job.local_addr if job.rendezvous is None else None,
            virtual_local_rank=job.virtual_local_rank,
        ),
        logs,
        log_line_prefix_template=job.line_prefix,
        shutdown_timeout=job.shutdown_timeout,
        failure_grace=job.failure_grace,
        exit_barrier_timeout=job.exit_barrier_timeout,
        stop_scope=job.stop_scope,
        rendezvous=job.rendezvous and job.rendezvous.options(job.run_id, job.local_addr),
        worker_ports=job.worker_ports,
        share_store=job.share_store,
        environment=job.environment,
        become_subreaper=True,
    )
    with _SignalsTo(agent, job.signals):
        result = agent.run()
    if result.exit_code != 0:
        _report(job, result)
    return result.exit_code


class _SignalsTo:
    """Sends signals to an agent for a while. One that is ignored stays ignored."""

    def __init__(self, agent: LocalElasticAgent, signals: Sequence[int]) -> None:
        self._agent = agent
        self._signals = signals
        self._saved: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> None:
        for number in self._signals:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._saved[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._agent.request_stop(number)


def _report(job: LaunchConfig, result: RunResult) -> None:
    from elastic.cli import report
    from elastic.cli.options import PROGRAM
    from elastic.multiprocessing.errors import evidence

    _say(f"{PROGRAM}: {report.format_report(job.name, result)}")
    first = next(iter(result.failures.values()), None)
    if first is not None and job.error_file:
        try:
            evidence.pass_on(first, job.error_file)
        except OSError as error:
            _say(f"{PROGRAM}: cannot write {job.error_file}: {error.strerror}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
