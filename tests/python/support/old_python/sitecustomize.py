"""Makes Python what it is when it was built against an old libc and old headers of the kernel.

The interpreters of conda and of uv have been. In the path, it removes these names in all processes
but that of the tests themselves, whose support needs them.
"""

import os
import signal
import sys

if not any(os.path.basename(word) == "pytest" for word in sys.orig_argv):
    for name in ("memfd_create", "pidfd_open"):
        if hasattr(os, name):
            delattr(os, name)
    if hasattr(signal, "pidfd_send_signal"):
        del signal.pidfd_send_signal
