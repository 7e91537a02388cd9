"""The program of a worker that calls a function.

Its arguments are the paths of the call's file and of an open file for the value. The value is
preceded by the number of its round.

Nothing of elastic is imported before the launcher's module search path is in place.
"""

from __future__ import annotations

import os
import struct
import sys

ROUND = struct.Struct("<q")
INCOMPLETE = -1


def main(call_path: str, value_path: str) -> None:
    import pickle
    from multiprocessing import process, spawn

    with open(call_path, "rb") as file:
        preparation = pickle.load(file)
        process.current_process().authkey = preparation.pop("authkey")
        # multiprocessing imports a __main__ again only while this is set.
        process.current_process()._inheriting = True  # type: ignore[attr-defined]
        try:
            spawn.prepare(preparation)
            function, args = pickle.load(file)
        finally:
            del process.current_process()._inheriting  # type: ignore[attr-defined]
    value = function(*args)
    with open(value_path, "wb") as file:
        file.write(ROUND.pack(INCOMPLETE))
        pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        file.seek(0)
        file.write(ROUND.pack(int(os.environ["ELASTIC_ROUND"])))


def _record_and_run(call_path: str, value_path: str) -> None:
    """Runs the call; an exception goes to the error file and its traceback to stderr."""
    try:
        main(call_path, value_path)
    except SystemExit as error:
        if error.code not in (0, None):
            raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # frames of this file are irrelevant to the user
        error = error.with_traceback(trace or error.__traceback__)
        from elastic.multiprocessing.errors.error_handler import get_error_handler

        get_error_handler().record_exception(error)
        # As the interpreter does with an exception that ends the main thread.
        uncaught = (type(error), error, error.__traceback__)
        sys.audit("sys.excepthook", sys.excepthook, *uncaught)
        sys.excepthook(*uncaught)
        raise SystemExit(1) from None


if __name__ == "__main__":
    import faulthandler

    # The first entry is this file's directory, whose modules would hide others of the same names.
    del sys.path[0]
    faulthandler.enable()
    _record_and_run(*sys.argv[1:])
