"""Prints what a script can see of its process as one line of JSON."""

from __future__ import annotations

import gc
import inspect
import json
import locale
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from typing import Any

import __main__


class Sample:
    """Pickled by its name in __main__."""


def _stream(stream: Any) -> list[object]:
    return [stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines,
            stream.line_buffering, stream.write_through, type(stream.buffer).__name__,
            stream.fileno(), stream.closed, stream.isatty()]  # fmt: skip


def _descriptors() -> dict[int, tuple[int, bool]]:
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            kind = stat.S_IFMT(os.fstat(number).st_mode)
            found[number] = (kind, os.get_inheritable(number))
        except OSError:
            continue
    return found


def _signals() -> dict[str, object]:
    with open("/proc/self/status") as file:
        native = [line for line in file if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    handlers = {int(n): repr(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()}
    return {"native": native, "handlers": handlers, "wakeup": signal.set_wakeup_fd(-1)}


def _c_environment() -> list[str]:
    """As a child gets it from the C library."""
    text = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout
    return sorted(os.fsdecode(text).split("\0"))


def _module() -> dict[str, object]:
    names = ("__name__", "__file__", "__package__", "__doc__", "__cached__", "__annotations__")
    values = {name: getattr(__main__, name, "missing") for name in names}
    spec, loader = __main__.__spec__, __main__.__loader__
    return values | {
        "spec": spec and [spec.name, spec.origin, spec.parent],
        "loader": type(loader).__name__,
        "loader_path": getattr(loader, "path", None),
        "builtins": type(__main__.__builtins__).__name__,
        "is_main": sys.modules["__main__"] is __main__,
        "names": sorted(vars(__main__)),
    }


def _source_of_sample() -> str:
    return inspect.getsource(Sample)


def facts() -> dict[str, object]:
    process = multiprocessing.current_process()
    return {
        "main": _module(),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "executable": [sys.executable, sys.prefix],
        "cwd": [os.getcwd(), multiprocessing.process.ORIGINAL_DIR],
        "environ": dict(sorted(os.environ.items())),
        "c_environ": _c_environment(),
        "umask": [os.umask(0o22), os.umask(0o22)],
        "limits": [resource.getrlimit(number) for number in range(10)],
        "signals": _signals(),
        "descriptors": _descriptors(),
        "streams": [_stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "same_streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "threads": [t.name for t in threading.enumerate()] + os.listdir("/proc/self/task")[1:],
        "thread": [threading.main_thread().ident == threading.get_ident(),
                   threading.current_thread().native_id == os.getpid()],
        "process": [process.name, process.daemon, multiprocessing.parent_process(),
                    multiprocessing.active_children(), multiprocessing.get_start_method(True),
                    len(process.authkey)],
        "preparation": {
            key: value
            for key, value in multiprocessing.spawn.get_preparation_data("x").items()
            if key != "authkey"
        },
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding()],
        "filesystem": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "temporary": tempfile.gettempdir(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "pickle": pickle.dumps(Sample()).hex(),
        "source": _source_of_sample(),
        "limits_of_python": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "comm": open("/proc/self/comm").read(),
        "command": open("/proc/self/cmdline").read().rstrip("\0"),
        "own_modules": sorted(name for name in sys.modules if name.startswith("elastic")),
    }  # fmt: skip


if __name__ == "__main__":
    values = facts()
    if "--random" in sys.argv:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        values = {
            "random": random.random(),
            "numpy": numpy and float(numpy.random.rand()),
            "authkey": multiprocessing.current_process().authkey.hex(),
        }
    print(json.dumps(values), flush=True)
