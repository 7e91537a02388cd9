"""Scripts and modules of jobs with warm workers."""

from __future__ import annotations

import signal
import subprocess

# The script does not import the preloaded module, so that only a forked worker has it.
SCRIPT = """
import os, sys
from time import sleep
how = "forked" if "colorsys" in sys.modules else "executed"
sys.stdout.write(f"{how} rank {os.environ['RANK']} round {os.environ['ELASTIC_ROUND']}\\n")
"""


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(done.stdout.splitlines())


# What a module may do at import, and what the template reports about it.
HOSTILE = {
    "import threading as t\nt.Thread(target=t.Event().wait, args=(60,), daemon=True).start()":
        "left a thread",
    "import ctypes, ctypes.util\n"
    "libc = ctypes.CDLL(None)\nT = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)\n"
    "pause = ctypes.cast(libc.pause, ctypes.c_void_p)\n"
    "libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, pause, None)":
        "left a thread",
    "file = open('/dev/full', 'wb')": "left the descriptor",
    "import socket\nleft = socket.socket()": "left the descriptor",
    "import os\nleft = os.pipe()": "left the descriptor",
    "import os\nos.fork = lambda: 0": "replaced os.fork",
    "import os\nos.getppid = lambda: 1": "replaced os.getppid",
    "import socket\nsocket.socket.connect = None": "replaced socket.socket.connect",
    "import threading\nthreading.Thread.start = lambda self: None":
        "replaced threading.Thread.start",
    "import builtins\nbuiltins.open = None": "broke the interpreter",
    "import builtins\nbuiltins.input = None": "replaced builtins.input",
    "import signal\nsignal.signal(signal.SIGTERM, lambda *a: None)": "changed the handling of sig",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)": "changed the handling of sig",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])":
        "changed the handling of sig",
    "import faulthandler, signal\nfaulthandler.enable(2)": "changed the handling of sig",
    "print('x' * 70_000)": "printed more than 64 KiB",
    "import os\nif os.fork() == 0:\n    from time import sleep; sleep(60)": "left a child process",
    "import os\nos.fork()": "left a child process",
    "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', ''])":
        "left a child process",
    "import os\nos.chdir('/')": "changed the working directory",
    "import os\nos.umask(0o77)": "changed the umask",
    "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0))": "changed the resource limits",
    "import sys\nsys.path.append('/nowhere')": "changed sys.path",
    "import sys\nsys.argv.append('x')": "changed sys.argv",
    "import sys\nsys.excepthook = print": "changed sys.excepthook",
    "import sys\nsys.stdout = sys.stderr": "changed sys.stdout",
    "import sys\nsys.settrace(lambda *a: None)": "changed the trace function",
    "import sys\nsys.setrecursionlimit(50000)": "changed the recursion limit",
    "import gc\ngc.set_threshold(1)": "changed the garbage collector's thresholds",
    "import os\nos.environ['PATH'] = '/x'": "changed the variable PATH",
    "import os\ndel os.environ['PATH']": "changed the variable PATH",
    "import random\nrandom.seed(1)": "changed the state of random",
    "import os\nos.nice(1)": "changed the priority",
    "import os\nos.setsid = None": "replaced os.setsid",
    "import signal\nsignal.setitimer(signal.ITIMER_PROF, 100)": "changed the timers",
    "import socket\nsocket.setdefaulttimeout(1)": "changed the default timeout of sockets",
    "1 / 0": "(ZeroDivisionError(",
    "import sys\nsys.exit('enough')": "(SystemExit('enough'))",
    "raise KeyboardInterrupt": "(KeyboardInterrupt())",
    "import no_such_module_x": "(No module named 'no_such_module_x')",
}  # fmt: skip


CRASHING = {
    "import os\nos._exit(0)": 0,
    "import os\nos.abort()": -signal.SIGABRT,
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "import ctypes\nctypes.string_at(0)": -signal.SIGSEGV,
}
