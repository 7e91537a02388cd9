"""Imported by the interpreter at the start of each Python worker, before the script.

The launcher puts this folder first in the worker's PYTHONPATH. This module takes it out again,
begins the reports of the worker, and imports the user's own ``sitecustomize``, if there is one.
Any version of Python can import it, also one without elastic. A failure leaves a plain worker.
"""

# Weak point: an interpreter that is started with -I, -E or -S does not import this module, and such
# a worker reports neither steps nor stacks.

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
VARIABLE = "PYTHONPATH"
# The value for a variable that was set and empty: another entry would be the current directory.
EMPTY = os.path.join(FOLDER, "")


def added_to(path):
    # type: (str | None) -> str
    """The value of PYTHONPATH for a worker; ``path``: the launcher's value, or None."""
    if path is None:
        return FOLDER
    return FOLDER + os.pathsep + path if path else EMPTY


def restore():
    # type: () -> bool
    """Takes the folder out of the variable. False: it is not in it."""
    entries = os.environ.get(VARIABLE, "").split(os.pathsep)
    for index, entry in enumerate(entries):
        if entry in (FOLDER, EMPTY):
            entries[index : index + 1] = [] if entry == FOLDER else [""]
            if entries:
                os.environ[VARIABLE] = os.pathsep.join(entries)
            else:
                del os.environ[VARIABLE]
            return True
    return False


def _begin():
    # type: () -> None
    is_added = restore()
    try:
        if is_added and sys.version_info >= (3, 10):
            import elastic_hook  # type: ignore[import-not-found]

            del sys.modules["elastic_hook"]
            elastic_hook.begin()
    except Exception:
        pass  # the worker runs without reports
    while FOLDER in sys.path:
        sys.path.remove(FOLDER)
    sys.path_importer_cache.pop(FOLDER, None)


if __name__ == "sitecustomize":
    _begin()
    del sys.modules[__name__]
    # The user's own one. If there is none, the interpreter expects this error.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
