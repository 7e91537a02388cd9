"""The command ``elastic-launch``: parse, run, report. The only module that prints.

Only the imports at the top are loaded before the first instruction of ``console_main``; all other
modules are imported after the signal handling is set up.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from logging import Handler
    from types import FrameType
    from typing import Any

    from elastic.agent.server.api import RunResult
    from elastic.cli.command_line import CommandLine
    from elastic.cli.config import JobConfig
    from elastic.cli.console import Console
    from elastic.launcher.api import CommandAgent
    from elastic.multiprocessing.logs import LogOptions

    Parse = Callable[[Sequence[str], Mapping[str, str]], JobConfig]

RESOLVE_PAUSE_S = 0.1
RESOLVE_PAUSE_MAX_S = 5.0
# For the result of a failed job. They are loaded while the workers run.
_MODULES_AFTER = ("elastic.cli.report", "elastic.cli.result_json")
# The warnings of this process: a program may run several jobs.
_warned: set[str] = set()
# As in elastic._C, whose import may have failed.
EXIT_INTERNAL = 70
EXIT_CANNOT_LOG = 74


def console_main(parse: Parse | None = None) -> None:
    """Runs the job of ``sys.argv`` and ends the process with the job's exit status.

    ``parse`` creates the configuration; the default is ``elastic.cli.resolve.parse``.

    The agent's signal handlers stay installed until the process has ended: the interpreter is not
    finalized, because a signal during finalization would kill the process.
    """
    # Before the agent exists there is nothing to stop, so signals have their default action.
    # Python's own handler would print a traceback for Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from elastic.cli import console

    console.open_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # arguments may have any bytes
    launcher = Launcher(console.Console())
    code = EXIT_INTERNAL
    try:
        code = launcher.run(sys.argv[1:], parse)
    finally:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # of --help, or of a parser of argparse
            code = exit_status(error)
        elif error is not None:
            launcher.report_bug(error)
        launcher.flush()
        code = _flush_output(code)
        if launcher.has_plug_ins:
            atexit._run_exitfuncs()  # of the plug-ins
        os._exit(code)


def _is_new(warning: str) -> bool:
    """Whether this process has not given the warning yet. Each is given once."""
    is_new = warning not in _warned
    _warned.add(warning)
    return is_new


def exit_status(error: SystemExit) -> int:
    """As the interpreter would exit."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _flush_output(code: int) -> int:
    """Flushes stdout, and returns the exit status, which a closed pipe does not change."""
    from elastic.cli import console
    from elastic.cli.options import PROGRAM

    try:
        console.show("")
    except console.OutputError as error:
        if code == 0:  # else the reason has been reported
            print(f"{PROGRAM}: {error}", file=sys.stderr)
            return EXIT_CANNOT_LOG
    except (BrokenPipeError, ValueError):  # ValueError: it was closed
        pass
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job of a command line and returns the exit status.

    In the main thread it installs signal handlers, and restores them at the end; in other threads
    it handles no signal. ``--help`` and ``--version`` raise SystemExit, as in argparse programs.
    """
    from elastic.cli import console

    launcher = Launcher(console.Console())
    try:
        return launcher.run(sys.argv[1:] if argv is None else argv)
    finally:
        launcher.restore()


def run_and_raise(line: CommandLine) -> None:
    """Runs the job of a parsed command line for a program that expects torch's exceptions."""
    from elastic.cli import console, resolve
    from elastic.launcher.api import check_result

    launcher = Launcher(console.Console())
    try:
        job = launcher.resolve(lambda: resolve.configure(line, os.environ))
        if job.is_dry_run:
            print_plan(job)
            return
        result = launcher.launch(job)
    finally:
        launcher.restore()
    check_result(job.name, result, launcher.received)


def _is_output_shown(job: JobConfig) -> bool:
    """Whether the stderr of the job's only worker goes to the console."""
    from elastic.multiprocessing.logs import Std

    is_only = job.spec.local_world_size == 1 and job.rendezvous is None
    return is_only and job.logs.target(0, Std.ERR) in ("inherit", "tee") and not job.logs.plug_in


def print_plan(job: JobConfig) -> None:
    from elastic.cli import console, plan

    try:
        console.show(plan.text(job, os.environ))
    except BrokenPipeError:
        return


class Launcher:
    """One run of the command: its console, its signals and its agent."""

    def __init__(self, console: Console) -> None:
        from elastic.constants import DEFAULT_START_TIMEOUT_S, ECHO_S

        self._console = console
        self._agent: CommandAgent | None = None
        self._saved: dict[int, signal._HANDLER] = {}
        self._blocked: Iterable[int] | None = None  # the signals that were, before
        self._handler: Handler | None = None
        self._level = 0  # of the root logger, before
        self.has_plug_ins = False
        self._is_stopping = False
        self._drain_timeout: float | None = None  # None: a signal stops the workers
        self._drained_at = float("-inf")  # the time.monotonic() of a signal that requested a drain
        self._stopped_at = float("-inf")  # the same of the first signal that stops the workers
        self._echo_s = ECHO_S
        self._result_json = ""
        self._file_timeout = DEFAULT_START_TIMEOUT_S
        self.received: list[int] = []  # signals, the first one first

    def run(self, argv: Sequence[str], parse: Parse | None = None) -> int:
        from elastic import _C
        from elastic.cli.console import OutputError
        from elastic.errors import ConfigError, ElasticError, fault_of
        from elastic.text import UnresolvedHost, duration

        try:
            # A subcommand is no option, path or script with a suffix.
            if parse is None and argv and argv[0][:1].isalpha() and "." not in argv[0]:
                from elastic.cli import subcommands

                subcommand = subcommands.find(argv)
                if subcommand is not None:
                    return subcommands.run(subcommand, argv[1:])
            return self._launch(self._resolve(argv, parse))
        except UnresolvedHost as error:
            text = f"{error}; gave up after {duration(error.timeout)}"
            return self._conclude(error, _C.EXIT_JOIN_TIMED_OUT, text)
        except ConfigError as error:
            return self._conclude(error, _C.EXIT_USAGE)
        except OutputError as error:
            return self._conclude(error, EXIT_CANNOT_LOG)
        except Exception as error:
            if (fault := fault_of(error)) is not None:
                return self._conclude(fault, fault.exit_code)
            if isinstance(error, ElasticError):
                return self._conclude(error, _C.EXIT_INTERNAL)
            is_value = isinstance(error, (OSError, OverflowError, UnicodeError))
            if self._agent is not None or not is_value:
                raise
            if isinstance(error, BrokenPipeError):  # the reader of a subcommand's output has gone
                return 0
            # A value that no check expects.
            return self._conclude(error, _C.EXIT_USAGE, f"cannot use the options: {error}")

    def _conclude(self, error: Exception, exit_code: int, text: str = "") -> int:
        """Reports that the job could not be started."""
        from elastic.agent.server.api import RunResult, WorkerState

        message = text or str(error)
        path = self._result_json or getattr(error, "result_json", "")
        if path:
            result = RunResult(WorkerState.FAILED, exit_code=exit_code, message=message)
            self._write_result(path, "", result)
        self._write_line(message)
        return exit_code

    def _write_result(self, path: str, name: str, result: RunResult) -> None:
        def write() -> None:
            from elastic.cli import result_json

            result_json.write(path, name, result)

        self._write_file(path, write)

    def _write_file(self, path: str, write: Callable[[], None]) -> None:
        """In a limited time: while signals have handlers, a blocked call would never end."""
        from elastic import _files

        try:
            _files.within(self._file_timeout, write)
        except (ImportError, OSError) as error:
            self._write_line(f"cannot write {path}: {getattr(error, 'strerror', None) or error}")

    def _resolve(self, argv: Sequence[str], parse: Parse | None) -> JobConfig:
        from elastic.cli import resolve

        chosen = parse or resolve.parse
        return self.resolve(lambda: chosen(argv, os.environ))

    def resolve(self, parse: Callable[[], JobConfig]) -> JobConfig:
        """The configuration; retries while a host name cannot be resolved yet."""
        from elastic.text import UnresolvedHost

        begun = time.monotonic()
        pause = RESOLVE_PAUSE_S
        is_first = True
        while True:
            try:
                return parse()
            except UnresolvedHost as error:
                left = begun + error.timeout - time.monotonic()
                if left <= 0:
                    raise
                if is_first and _is_new(str(error)):
                    until = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
                    self._write_line(f"{error}; trying again, gives up at {until}")
                is_first = False
                time.sleep(min(pause, left))
                pause = min(2 * pause, RESOLVE_PAUSE_MAX_S)

    def flush(self) -> None:
        """Writes the remaining text; after a signal with a short timeout."""
        from elastic.cli import console

        limit = console.STOP_FLUSH_TIMEOUT_S if self._is_stopping else console.FLUSH_TIMEOUT_S
        self._console.flush(limit)

    def restore(self) -> None:
        """Undoes what ``run`` changed in a process that continues."""
        if self._handler is not None:
            import logging

            logging.getLogger().removeHandler(self._handler)
            logging.getLogger().setLevel(self._level)
        self.flush()
        if self._blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        for number, handler in self._saved.items():
            # None: the handler is not Python's, and only its library can install it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _launch(self, job: JobConfig) -> int:
        if job.is_dry_run:
            print_plan(job)
            return 0
        self._result_json, self._file_timeout = job.result_json, job.native["start_timeout"]
        result = self.launch(job)
        if job.result_json:  # before the console, which may block
            self._write_result(job.result_json, job.name, result)
        if result.exit_code != 0:
            self._report(job, result)
        for event in ("bad_host", "excluded_host"):
            if found := getattr(result, event):
                self._print_host(job, event, found)
        return result.exit_code

    def _print_host(self, job: JobConfig, event: str, found: Mapping[str, str]) -> None:
        """The line for schedulers: the last one of stdout (docs/policy.md)."""
        import json

        from elastic.cli import console

        line = {"event": event, "run_id": job.spec.run_id} | dict(found)
        with contextlib.suppress(OSError, console.OutputError):  # the report has it, too
            console.show(json.dumps(line) + "\n")

    def launch(self, job: JobConfig) -> RunResult:
        import logging

        from elastic.agent.server.native_elastic_agent import NativeElasticAgent
        from elastic.cli import messages

        self._level = logging.getLogger().level
        self._handler = messages.log_to(self._console, job.log_level, as_records=job.log_records)
        logger = logging.getLogger(__name__)
        for level, sentence in job.notes:
            if level < logging.WARNING or _is_new(sentence):
                logger.log(level, "%s", sentence)
        logs = job.logs
        if logs.redirects_any and logs.log_dir is None:
            from elastic.cli import output

            directory = output.make_temporary_directory(job.native["start_timeout"])
            logs = logs._replace(log_dir=directory)
            logger.warning("the workers' output goes to files in %s", logs.log_dir)
        common: dict[str, Any] = {
            "log_line_prefix_template": job.line_prefix,
            "shutdown_timeout": job.shutdown_timeout,
            "environment": job.environment,
            "become_subreaper": True,
            "worker_cpus": job.worker_cpus,
            "event_log": job.event_log,
            "metrics_port": job.metrics_port,
        }
        is_handler = job.rendezvous is not None and job.rendezvous.is_handler
        self.has_plug_ins = bool(job.policy_function) or (
            job.rendezvous is not None and job.rendezvous.has_plug_in()
        )
        if is_handler or logs.plug_in:
            return self._launch_with_handler(job, logs, common)
        self._agent = NativeElasticAgent(
            job.spec,
            logs,
            rendezvous=job.rendezvous and job.rendezvous.options(job.spec.job_id(), job.local_addr),
            warm_template=job.warm_template,
            failure_policy=job.failure_policy,
            policy_function=job.policy_function,
            modules_after=_MODULES_AFTER,
            **common,
            **job.native,
        )
        self._handle_signals(job)
        return self._agent.run()

    def _launch_with_handler(
        self, job: JobConfig, logs: LogOptions, common: Mapping[str, Any]
    ) -> RunResult:
        """Runs the job with a third-party rendezvous handler, or third-party log files."""
        from elastic._data import changed
        from elastic.agent.server.later import Later
        from elastic.cli import resolve
        from elastic.cli.config import RendezvousConfig
        from elastic.launcher.api import handler_agent
        from elastic.rendezvous.keys import Keys

        self.has_plug_ins = True
        Later(_MODULES_AFTER).load()
        alone = RendezvousConfig("c10d", 1, 1, Keys({}), endpoint_host="localhost", is_host=True)
        run_id = job.spec.job_id()
        spec = changed(
            job.spec,
            rdzv_handler=resolve.rendezvous_handler(
                job.rendezvous or alone, run_id, job.local_addr
            ),
            master_addr=None,
            duplicate_stdout_filters=list(logs.stdout_filters) or None,
            duplicate_stderr_filters=list(logs.stderr_filters) or None,
        )
        barrier = job.native.get("exit_barrier_timeout")
        self._agent = agent = handler_agent(spec, logs, exit_barrier_timeout=barrier, **common)
        self._handle_signals(job)
        try:
            return agent.run()
        finally:  # after an error, too: no other node waits for this one
            if not self.received:
                agent.shut_down_rendezvous()

    def _handle_signals(self, job: JobConfig) -> None:
        """Installs handlers that pass signals to the agent. Ignored signals stay ignored."""
        import logging
        import threading

        if threading.current_thread() is not threading.main_thread():
            logging.getLogger(__name__).warning(
                "no signal stops the job: the launcher does not run in the main thread"
            )
            return
        self._drain_timeout = job.drain_timeout
        drained = (job.drain_signal,) if job.drain_signal else ()
        for numbers, handler in (
            ([number for number in job.signals if number not in drained], self._handle),
            (job.forwarded_signals, self._forward),
            (drained, self._drain),
        ):
            for number in numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._saved[number] = signal.signal(number, handler)
        # A parent may have blocked them, and a blocked mask is inherited.
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, self._saved)

    def _forward(self, number: int, _: FrameType | None) -> None:
        if self._agent is not None:
            self._agent.forward(number)

    def _drain(self, number: int, frame: FrameType | None) -> None:
        """The first signal requests a stop at one step; a later SIGTERM stops the workers."""
        limit, self._drain_timeout = self._drain_timeout, None
        if limit is None:
            if number == signal.SIGTERM:
                self._handle(number, frame)
        elif self._agent is not None:
            self._drained_at = time.monotonic()
            self._agent.request_drain(number, limit)

    def _handle(self, number: int, _: FrameType | None) -> None:
        """A signal soon after the first one, or after a notice, is an echo of it."""
        now = time.monotonic()
        if now < max(self._drained_at, self._stopped_at) + self._echo_s:
            return
        if not self.received:
            self._stopped_at = now
        self._is_stopping = True
        self.received.append(number)
        if self._agent is not None:
            self._agent.request_stop(number)

    def _report(self, job: JobConfig, result: RunResult) -> None:
        if job.error_file:  # before the console, which may block
            self._write_file(job.error_file, lambda: self._pass_on(result, job.error_file))
        if any(failure.stderr_tail for failure in result.failures.values()):
            self._console.write("")  # the last line that was copied may have no end
        try:
            from elastic.cli import messages, report

            text = report.format_report(job.name, result, _is_output_shown(job))
            self._write_line(messages.screen(text, os.environ))
        except (ImportError, OSError) as error:
            self._write_line(f"{job.name} failed: {result.message} (there is no report: {error})")

    def _pass_on(self, result: RunResult, path: str) -> None:
        from elastic.agent.server.api import own_failure
        from elastic.multiprocessing.errors import evidence

        first, cause = own_failure(result), result.job
        if first is None and cause is not None and (known := cause.evidence) is not None:
            text = known.error or cause.message
            evidence.pass_on_remote(text, known.time, known.output, result.exit_code, path)
        elif result.failures:
            evidence.pass_on(first or next(iter(result.failures.values())), path)

    def report_bug(self, error: BaseException) -> None:
        import traceback

        self._console.write("".join(traceback.format_exception(error)).rstrip("\n"))

    def _write_line(self, text: str) -> None:
        from elastic.cli.options import PROGRAM

        self._console.write(f"{PROGRAM}: {text}")
