"""The folder whose ``sitecustomize`` each Python worker imports first (docs/hangs.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elastic._site import elastic_hook, sitecustomize
from elastic.constants import AUTO_PROGRESS_VARIABLE


def add(environment: dict[str, str], has_template: bool = False) -> None:
    """Puts the folder first in PYTHONPATH, unless the hook is off.

    ``has_template``: the template of warm workers learns which modules they need.
    """
    folder = sitecustomize.FOLDER
    path = environment.get(sitecustomize.VARIABLE)
    if environment.get(AUTO_PROGRESS_VARIABLE) == "0" or os.pathsep in folder:
        return
    # There already: the launcher is a worker that did not import it (``python -E``).
    if path is None or path.partition(os.pathsep)[0].rstrip(os.sep) != folder:
        environment[sitecustomize.VARIABLE] = sitecustomize.added_to(path)
    if has_template:
        environment[elastic_hook.MODULES_VARIABLE] = f"elastic-modules-{os.urandom(16).hex()}"


def is_python(program: object, environment: Mapping[str, str] | None = None) -> bool:
    name = str(program)
    is_named = environment is not None and name == environment.get("PYTHON_EXEC")
    return is_named or os.path.basename(name).startswith("python")
