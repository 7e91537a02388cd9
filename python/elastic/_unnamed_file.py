"""A file without a name, in memory where Python can make one."""

import os


def unnamed_file(name: str) -> int:
    """A descriptor, whose path is ``/proc/PID/fd/N``. ``name`` is for ``ls -l`` there.

    A Python that was built against an old libc, as those of conda and uv, has no ``memfd_create``.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    descriptor, path = tempfile.mkstemp(f"-{name}")
    os.unlink(path)
    return descriptor
