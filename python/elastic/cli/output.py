"""Checks the options for the workers' output: log files, lines on the console, filters."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from elastic import _environment, _files
from elastic.cli import values
from elastic.cli.command_line import CommandLine
from elastic.constants import DEFAULT_LINE_PREFIX
from elastic.errors import ConfigError
from elastic.multiprocessing.logs import NO_DIRECTORY, LogOptions, Std, parse_ranks, parse_words
from elastic.text import duration, plural, seconds

T = TypeVar("T")

LOG_BYTES_LEAST = 4096
LOG_FILES_MOST = 1000
LINE_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


def logs(line: CommandLine, nproc: int) -> LogOptions:
    log_dir = line.text("log-dir")
    redirects, tee = (_streams(line, name, nproc) for name in ("redirects", "tee"))
    ranks = None
    if line.text("local-ranks-filter"):
        origin = line.origin("local-ranks-filter")
        try:
            ranks = parse_ranks(line.text("local-ranks-filter"))
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from error
        ranks = frozenset(_known_ranks(ranks, nproc, line, "local-ranks-filter"))
    chosen = LogOptions(
        None,
        redirects,
        tee,
        ranks,
        merge_lines=line.switch("merge-lines"),
        stdout_filters=_filters(line, "stdout", Std.OUT, redirects, tee),
        stderr_filters=_filters(line, "stderr", Std.ERR, redirects, tee),
        plug_in=_plug_in(line),
    )
    if line.text("log-max-bytes"):
        chosen = _limited(line, chosen)
    if log_dir == os.devnull:  # torchrun's value for: no files
        if chosen.writes_any:
            line.warnings.append(f"{line.origin('log-dir')} {NO_DIRECTORY}")
        no_files = LogOptions(local_ranks_filter=ranks, plug_in=chosen.plug_in)
        return no_files._replace(merge_lines=chosen.merge_lines)
    if not log_dir:
        return chosen
    log_dir = absolute(log_dir, line.origin("log-dir"))
    limit = seconds(line.text("start-timeout"), line.origin("start-timeout"), positive=True)
    _make_directory(log_dir, line.origin("log-dir"), limit)
    return chosen._replace(log_dir=log_dir)


def _limited(line: CommandLine, chosen: LogOptions) -> LogOptions:
    max_bytes = values.size(line, "log-max-bytes", LOG_BYTES_LEAST)
    max_files = values.integer(line, "log-max-files", 1, LOG_FILES_MOST)
    if not chosen.writes_any:
        line.warnings.append(
            f"{line.origin('log-max-bytes')} has no effect: --tee or --redirects must select a "
            "stream"
        )
        return chosen
    return chosen._replace(max_bytes=max_bytes, max_files=max_files)


def make_temporary_directory(limit: float) -> str:
    """A directory for the files of --redirects, which is kept."""

    def make() -> str:
        import tempfile

        # Not in another directory than the user named, as tempfile would choose.
        return tempfile.mkdtemp(prefix="elastic_", dir=_environment.get("TMPDIR") or None)

    what = "the directory for temporary files (TMPDIR)"
    return _within(limit, make, what, "--redirects without --log-dir")


def _make_directory(path: str, origin: str, limit: float) -> None:
    def make() -> None:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    _within(limit, make, path, origin)


def _within(limit: float, make: Callable[[], T], what: str, origin: str) -> T:
    try:
        return _files.within(limit, make)
    except TimeoutError:
        raise ConfigError(
            f"{origin}: {what} did not respond within {duration(limit)}; use a directory on "
            "another file system"
        ) from None
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise ConfigError(f"{origin}: cannot make {what}: {why}") from error


def line_prefix(line: CommandLine, environ: Mapping[str, str]) -> str:
    given = line.text("log-line-prefix-template")
    return given or environ.get(LINE_PREFIX_VARIABLE) or DEFAULT_LINE_PREFIX


def absolute(path: str, origin: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise ConfigError(
            f"{origin} is {path}, but the current directory no longer exists: give an absolute path"
        ) from error


def result_json(line: CommandLine) -> str:
    path = line.text("result-json")
    if not path:
        return ""
    path = absolute(path, line.origin("result-json"))
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        raise ConfigError(
            f"{line.origin('result-json')} is {path!r}: expected a file in a directory that exists"
        )
    return path


def _plug_in(line: CommandLine) -> str:
    """The name of a third-party LogsSpecs; torch's default is ours."""
    name = line.text("logs-specs")
    if name in ("", "default"):
        return ""
    from elastic.multiprocessing import logs_specs

    try:
        logs_specs.plugged_in(name)
    except ConfigError as error:
        raise ConfigError(f"{line.origin('logs-specs')}: {error}") from error
    return name


def _filters(
    line: CommandLine,
    stream: str,
    bit: Std,
    *choices: Std | Mapping[int, Std],
) -> tuple[str, ...]:
    """The words of a filter; without effect if the stream of no worker is written to a file."""
    name = f"duplicate-{stream}-filters"
    words = parse_words(line.text(name))
    values = [
        value
        for choice in choices
        for value in ([choice] if isinstance(choice, Std) else choice.values())
    ]
    if words and not any(bit in value for value in values):
        line.warnings.append(
            f"{line.origin(name)} has no effect: --tee or --redirects must select {stream}"
        )
        return ()
    return words


def _streams(line: CommandLine, name: str, nproc: int) -> Std | dict[int, Std]:
    try:
        streams = Std.from_str(line.text(name))
    except ConfigError as error:
        raise ConfigError(f"{line.origin(name)}: {error}") from error
    if isinstance(streams, dict):
        return {rank: streams[rank] for rank in _known_ranks(streams, nproc, line, name)}
    return streams


def _known_ranks(ranks: Iterable[int], nproc: int, line: CommandLine, name: str) -> list[int]:
    """Those that exist here: torchrun ignores others, so that all nodes can have one line."""
    beyond = [rank for rank in ranks if rank >= nproc]
    if beyond:
        workers = plural(nproc, "worker")
        line.warnings.append(
            f"{line.origin(name)}: there is no local rank {min(beyond)} among {workers}"
        )
    return [rank for rank in ranks if rank < nproc]
