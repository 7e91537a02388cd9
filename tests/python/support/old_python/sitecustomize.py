"""Makes Python what it is when it was built against an old libc and old headers of the kernel.

The interpreters of conda and of uv have been. In the path, or run by a .pth file (tests/run.sh), it
removes these names. The tests themselves, whose support needs them, put them back (conftest.py).
"""

import os
import signal
import sys

removed = sys.__dict__.setdefault("old_python_names", [])  # a .pth file may be read twice
for module, name in ((os, "memfd_create"), (os, "pidfd_open"), (signal, "pidfd_send_signal")):
    if hasattr(module, name):
        removed.append((module, name, module.__dict__.pop(name)))
