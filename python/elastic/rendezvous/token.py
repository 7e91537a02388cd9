"""The job's token: which file or variable it comes from (docs/security.md).

It never comes from a command line, which every user of the host can read.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from collections.abc import Mapping
from typing import Any

from elastic.constants import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from elastic.errors import ConfigError


def find(path: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of ``_C.RendezvousOptions`` for the token; none if there is no token.

    ``path`` is a file that was named by an option; it has priority over both variables.
    """
    text = environ.get(TOKEN_VARIABLE, "")
    if not path:
        path = environ.get(TOKEN_FILE_VARIABLE, "")
        if path and text:
            raise ConfigError(
                f"{TOKEN_FILE_VARIABLE} and {TOKEN_VARIABLE} are both set: use one of them"
            )
    if path:
        return _of_file(path)
    return {"token": text} if text else {}


def check(token: Mapping[str, Any], run_id: str, environ: Mapping[str, str]) -> None:
    """Raises ConfigError if the token that ``find`` returned cannot be used."""
    if not token:
        return
    from elastic import _C

    # A later version than the system's, as conda has, is loaded first: there is one of a process.
    with contextlib.suppress(ImportError):
        importlib.import_module("_ssl")
    try:
        _C.check_token(run_id, **token)
    except ConfigError as error:
        if token.get("token") != environ.get(TOKEN_VARIABLE, ""):
            raise
        raise ConfigError(f"{TOKEN_VARIABLE}: {error}") from None


def _of_file(path: str) -> dict[str, str]:
    """A pipe, as in ``--token-file <(command)``, is read once; a file is read again on changes."""
    try:
        if not stat.S_ISFIFO(os.stat(path).st_mode):
            return {"token_file": os.path.abspath(path)}
        with open(path, encoding="utf-8", errors="surrogateescape") as pipe:
            text = pipe.read()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from error
    if not text.strip():
        raise ConfigError(f"the token file {path} is empty")
    return {"token": text}
