"""Where the output of processes goes, with torch's classes: one directory per start, kept.

::

    <log_dir>/<run id>_<random>/attempt_<restart count>/<local rank>/stdout.log, stderr.log
                                                                     error.json
                                                        filtered_stdout.log, filtered_stderr.log
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress

from elastic._C import temporary_stem
from elastic._data import data, field
from elastic._plug_in import plug_in, registered
from elastic.constants import ERROR_FILE_VARIABLE, NO_RUN_ID
from elastic.errors import ConfigError
from elastic.multiprocessing.logs import NO_DIRECTORY, LogOptions, Std, is_any

logger = logging.getLogger(__name__)

Streams = Std | Mapping[int, Std]
_ATTEMPTS_MAX = 10
ENTRY_POINTS = "torchrun.logs_specs"


def plugged_in(name: str) -> type[LogsSpecs]:
    """The class that an installed distribution registers under this name."""
    entry = registered(ENTRY_POINTS, name)
    if entry is None:
        raise ConfigError(
            f"there is no logs plug-in {name!r}: no installed distribution registers it in the "
            f"entry points {ENTRY_POINTS}"
        )
    try:
        found: type[LogsSpecs] = entry.load()
    except Exception as error:
        raise ConfigError(
            f"the logs plug-in {name!r} ({entry.value}) cannot be loaded: {error}"
        ) from error
    return found


def of_options(options: LogOptions) -> LogsSpecs:
    """The object of torch's interface for the launcher's options."""
    specs = plugged_in(options.plug_in) if options.plug_in else DefaultLogsSpecs
    return specs(options.log_dir, options.redirects, options.tee, options.local_ranks_filter)


def is_default(specs: object) -> bool:
    """Whether the native agent can create the files: ``reify`` is not overridden."""
    return isinstance(specs, DefaultLogsSpecs) and type(specs).reify is DefaultLogsSpecs.reify


@data
class LogsDest:
    """Paths by local rank; "": the console."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


def destinations(specs: LogsSpecs, envs: dict[int, dict[str, str]]) -> LogsDest:
    """The paths for the next start; if a plug-in fails, the output goes to the console."""
    if isinstance(specs, DefaultLogsSpecs):
        if is_default(specs):
            dest = specs.reify(envs)
            specs.begin()
            return dest
        specs.begin()
    with plug_in("logs plug-in"):
        dest = specs.reify(envs)
        # One for an older torch has no filtered files.
        own = LogsDest()
        return LogsDest(**{name: getattr(dest, name, value) for name, value in vars(own).items()})
    return LogsDest()


class LogsSpecs(ABC):
    """The base class of plug-ins (entry points ``torchrun.logs_specs``)."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: set[int] | frozenset[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """The paths for one start of processes with the variables ``envs``, which it may modify.

        The error file of a process is passed as ``TORCHELASTIC_ERROR_FILE``.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory that contains all files."""


class DefaultLogsSpecs(LogsSpecs):
    """A tree of directories by round and worker below ``log_dir``. Without ``log_dir`` it is in a
    temporary directory, which is removed at the end unless output went to files in it."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Streams = Std.NONE,
        tee: Streams = Std.NONE,
        local_ranks_filter: set[int] | frozenset[int] | None = None,
    ) -> None:
        exists = log_dir is not None and log_dir != os.devnull and os.path.exists(log_dir)
        if log_dir is not None and exists and not os.path.isdir(log_dir):
            raise NotADirectoryError(f"the log directory {log_dir} is not a directory")
        if log_dir == os.devnull and (is_any(redirects) or is_any(tee)):
            logger.warning("the log directory %s", NO_DIRECTORY)
            redirects = tee = Std.NONE
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None
        self._named: tuple[str, str] | None = None  # attempt and directory, until it is used
        self._removal: Callable[[], object] | None = None  # of an unused temporary directory

    def options(self) -> LogOptions:
        """The options for the native agent."""
        chosen = self._chosen()
        log_dir = self._root_log_dir
        if log_dir == os.devnull:
            log_dir = None
        elif log_dir is not None:
            os.makedirs(log_dir, exist_ok=True)
        elif chosen.writes_any:
            log_dir = self.root_log_dir
        return chosen._replace(log_dir=log_dir)

    def _chosen(self) -> LogOptions:
        ranks = self._local_ranks_filter  # an empty filter is none, as in torch
        return LogOptions(None, self._redirects, self._tee, frozenset(ranks) if ranks else None)

    @property
    def root_log_dir(self) -> str:
        if self._root_log_dir is None:
            if self._chosen().writes_any:
                self._root_log_dir = tempfile.mkdtemp(prefix="torchelastic_")
            else:
                self._root_log_dir, lock = _unused_directory()
                self._removal = weakref.finalize(self, _remove, self._root_log_dir, lock)
        return self._root_log_dir

    @property
    def is_temporary(self) -> bool:
        """Whether ``remove_unused`` removes the directory, with the error files in it."""
        return self._removal is not None

    def remove_unused(self) -> None:
        """Removes the temporary directory now, unless output went to files in it."""
        if self._removal is not None:
            self._removal()
            self._removal = self._root_log_dir = self._run_log_dir = self._named = None

    def begin(self) -> None:
        """Processes use the paths of the last ``reify``: the next one names a new directory."""
        self._named = None

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        if not envs:
            return LogsDest()
        has_files = self.root_log_dir != os.devnull
        attempt = self._attempt_dir(next(iter(envs.values()))) if has_files else ""
        chosen = self._chosen()
        dest = LogsDest()
        for rank, env in envs.items():
            folder = os.path.join(attempt, str(rank))
            if has_files:
                os.makedirs(folder, exist_ok=True)
            error_file = os.path.join(folder, "error.json") if has_files else ""
            dest.error_files[rank] = env[ERROR_FILE_VARIABLE] = error_file
            for stream, name, paths, tees in (
                (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
                (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
            ):
                path = os.path.join(folder, name)
                target = chosen.target(rank, stream)
                paths[rank] = {"inherit": "", "discard": os.devnull}.get(target, path)
                if target == "tee":
                    tees[rank] = path
        if has_files:
            dest.filtered_stdout = os.path.join(attempt, "filtered_stdout.log")
            dest.filtered_stderr = os.path.join(attempt, "filtered_stderr.log")
        return dest

    def _attempt_dir(self, env: Mapping[str, str]) -> str:
        """The directory of the next start; repeated calls before it return the same one.

        A start that was not a restart does not overwrite an earlier one.
        """
        if self._run_log_dir is None:
            run_id = env.get("TORCHELASTIC_RUN_ID", NO_RUN_ID).replace(os.sep, "_")
            os.makedirs(self.root_log_dir, exist_ok=True)
            self._run_log_dir = os.path.abspath(
                tempfile.mkdtemp(prefix=f"{run_id}_", dir=self.root_log_dir)
            )
        count = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        wanted = os.path.join(self._run_log_dir, f"attempt_{count}")
        if self._named is not None and self._named[0] == wanted:
            return self._named[1]
        for number in range(1, 1_000_000):
            path = wanted if number == 1 else f"{wanted}.{number}"
            try:
                os.mkdir(path)
                self._named = (wanted, path)
                return path
            except FileExistsError:
                continue
        raise ConfigError(f"{self._run_log_dir} has too many directories")

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DefaultLogsSpecs):
            return False
        mine = (self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter)
        theirs = (other._root_log_dir, other._redirects, other._tee, other._local_ranks_filter)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]


def _unused_directory() -> tuple[str, int]:
    """A temporary directory and its lock. If this process is killed, its guardian or the next agent
    removes it: by the name and the missing lock."""
    for _ in range(_ATTEMPTS_MAX):  # an agent that starts may remove it before it is locked
        path = tempfile.mkdtemp(prefix=f"{temporary_stem()}_")
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.exists(path):
                    return path, lock
            os.close(lock)
    raise ConfigError(f"other processes remove new directories in {tempfile.gettempdir()}")


def _remove(path: str, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
