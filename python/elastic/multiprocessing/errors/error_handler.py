"""How a worker writes the exception that ended it, for its agent to read."""

from __future__ import annotations

import faulthandler
import json
import logging
import time
import traceback
from typing import Any

from elastic import _environment, _files
from elastic.constants import ERROR_FILE_VARIABLE

logger = logging.getLogger(__name__)


class ErrorHandler:
    """Writes errors to the file that ``TORCHELASTIC_ERROR_FILE`` names; unset: to no file.

    No reader sees a partial file, unless the path is a device, a pipe or another process's file.
    """

    def _get_error_file_path(self) -> str | None:
        return _environment.get(ERROR_FILE_VARIABLE) or None

    _fn_name: str | None = None  # of the decorated function

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Called by ``record`` with the function's qualified name, before ``initialize``."""
        self._fn_name = fn_name

    def record_success(self) -> None:
        """Called when the decorated function has returned; for subclasses."""
        logger.debug("%s has returned", self._fn_name)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """The message of a worker that a signal killed; subclasses may add to it."""
        return message

    def initialize(self) -> None:
        """Makes a crash of the interpreter print the Python stack of every thread."""
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, RuntimeError, ValueError, AttributeError) as error:  # no usable stderr
            logger.debug("cannot enable faulthandler: %s", error)

    def _write_error_file(self, file_path: str, error_msg: str) -> None:
        try:
            _files.replace(file_path, error_msg.encode(errors="backslashreplace"))
        except OSError as error:
            logger.warning("cannot write %s: %s", file_path, error.strerror)

    def record_exception(self, e: BaseException) -> None:
        """Writes the exception with its traceback and the time."""
        path = self._get_error_file_path()
        if path is None:
            return
        data = {
            "message": {
                "message": f"{type(e).__name__}: {_text(e)}",
                "extraInfo": {
                    "py_callstack": "".join(traceback.format_exception(e)),
                    "timestamp": str(int(time.time())),
                },
            }
        }
        self._write_error_file(path, json.dumps(data))

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Puts the exit code into the error of a child."""
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            logger.warning("%s has no error details to add an exit code to", rootcause_error_file)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copies the error of a child to this process's own error file."""
        try:
            with open(rootcause_error_file, encoding="utf-8") as file:
                error = json.load(file)
        except (OSError, ValueError) as reason:
            logger.warning("cannot read the error file %s: %s", rootcause_error_file, reason)
            return
        if error_code and isinstance(error, dict):
            self.override_error_code_in_rootcause_data(rootcause_error_file, error, error_code)
        path = self._get_error_file_path()
        if path is None:
            logger.error("%s is not set: the error of a child is logged only: %s",
                         ERROR_FILE_VARIABLE, json.dumps(error))  # fmt: skip
            return
        self._write_error_file(path, json.dumps(error))


def _text(error: BaseException) -> str:
    """As str(), which a user's class may define and raise in."""
    return str(traceback.TracebackException(type(error), error, None))


def get_error_handler() -> ErrorHandler:
    return ErrorHandler()
