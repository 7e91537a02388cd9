"""torch's module names for modules that are elsewhere here.

``import elastic.events`` finds ``elastic.torch_compat.events``: one module with two names, so that
its classes are the same under both. Pickles name the second. For type checkers
``tools/write_alias_stubs.py`` writes a stub for each name while a package is built.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers know the name; every worker that imports elastic loads this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

_COMPAT = "elastic.torch_compat"
_TORCH = "torch.distributed.elastic"

# A module, with all modules below it; or the names of a module that has no file, by their home.
ALIASES: dict[str, str | dict[str, str]] = {
    "elastic.agent.server.health_check_server": f"{_COMPAT}.agents.health_check_server",
    "elastic.agent.server.local_elastic_agent": f"{_COMPAT}.agents.local_elastic_agent",
    "elastic.control_plane": f"{_COMPAT}.control_plane",
    "elastic.events": f"{_COMPAT}.events",
    "elastic.metrics": f"{_COMPAT}.metrics",
    "elastic.multiprocessing.api": f"{_COMPAT}.processes.api",
    "elastic.multiprocessing.errors.handlers": "elastic.multiprocessing.errors.error_handler",
    "elastic.multiprocessing.redirects": f"{_COMPAT}.processes.redirects",
    "elastic.multiprocessing.subprocess_handler": f"{_COMPAT}.processes.subprocess_handler",
    "elastic.multiprocessing.tail_log": f"{_COMPAT}.processes.tail_log",
    "elastic.numa": f"{_COMPAT}.numa",
    "elastic.rendezvous._etcd_stub": f"{_COMPAT}.rendezvous._etcd_stub",
    "elastic.rendezvous.api": f"{_COMPAT}.rendezvous.api",
    "elastic.rendezvous.c10d_rendezvous_backend": {
        "elastic.rendezvous.keepers.backends": (
            "C10dRendezvousBackend create_backend=create_c10d_backend"
        ),
    },
    "elastic.rendezvous.dynamic_rendezvous": {
        f"{_COMPAT}.rendezvous.api": "RendezvousBackend",
        f"{_COMPAT}.rendezvous.handlers": (
            "DynamicRendezvousHandler RendezvousSettings RendezvousTimeout create_handler"
        ),
    },
    "elastic.rendezvous.etcd_rendezvous": f"{_COMPAT}.rendezvous.etcd_rendezvous",
    "elastic.rendezvous.etcd_rendezvous_backend": {  # the state is in etcd's v3 interface
        "elastic.rendezvous.keepers.backends": "create_backend",
        "elastic.rendezvous.keepers.etcd": "EtcdRendezvousBackend",
    },
    "elastic.rendezvous.etcd_server": f"{_COMPAT}.rendezvous.etcd_server",
    "elastic.rendezvous.etcd_store": f"{_COMPAT}.rendezvous.etcd_store",
    "elastic.rendezvous.registry": f"{_COMPAT}.rendezvous.registry",
    "elastic.rendezvous.static_tcp_rendezvous": f"{_COMPAT}.rendezvous.static_tcp_rendezvous",
    "elastic.rendezvous.utils": f"{_COMPAT}.rendezvous.utils",
    "elastic.timer": f"{_COMPAT}.timer",
    "elastic.utils": f"{_COMPAT}.utils",
    # Not torch's, but former names.
    "elastic.agent.server.watchdog": f"{_COMPAT}.agents.watchdog",
    "elastic.rendezvous.handlers": f"{_COMPAT}.rendezvous.handlers",
    # Below an alias.
    f"{_COMPAT}.processes.subprocess_handler.handlers": f"{_COMPAT}.processes.subprocess_handler",
    f"{_COMPAT}.processes.subprocess_handler.subprocess_handler": (
        f"{_COMPAT}.processes.subprocess_handler"
    ),
    f"{_COMPAT}.timer.debug_info_logging": {
        f"{_TORCH}.timer.debug_info_logging": "log_debug_info_for_expired_timers",
    },
    f"{_COMPAT}.utils.data.elastic_distributed_sampler": {
        f"{_TORCH}.utils.data": "ElasticDistributedSampler",
    },
    f"{_COMPAT}.utils.log_level": {f"{_COMPAT}.utils.logging": "get_log_level"},
}


class _OtherName:
    """Loads a module under a further name. The module keeps its own name and specification."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        import importlib

        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

    def get_code(self, fullname: str) -> CodeType | None:  # for ``python -m``
        import importlib.util

        spec: Any = importlib.util.find_spec(self._home)
        code: CodeType | None = spec.loader.get_code(self._home)
        return code


class _Names:
    """Makes a module whose names are those of other modules, each loaded on its first use."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        self._homes = homes

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from elastic import _lazy

        names = [name for names in self._homes.values() for name in names.split()]
        load, listed = _lazy.attach(module.__name__, self._homes)
        public = [name.partition("=")[0] for name in names]
        vars(module).update(__getattr__=load, __dir__=listed, __all__=public)


class Finder:
    """Finds the modules of a table, and those below them, before any other finder is asked."""

    def __init__(self, aliases: Mapping[str, str | dict[str, str]]) -> None:
        self.aliases = aliases

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        home = self._home(fullname)
        if home == fullname:
            return None
        from importlib.util import find_spec, spec_from_loader

        loader: Any
        if isinstance(home, dict):
            loader = _Names(home)
            return spec_from_loader(fullname, loader)
        found = find_spec(home)
        if found is None:
            return None
        loader, is_package = _OtherName(home), found.submodule_search_locations is not None
        return spec_from_loader(fullname, loader, is_package=is_package)

    def _home(self, name: str) -> str | dict[str, str]:
        """The module of this name; ``name``: there is no alias for it."""
        known, below = name, ""
        while known:
            home = self.aliases.get(known)
            if isinstance(home, str):
                return home + below
            if home is not None:
                return name if below else home
            known, _, last = known.rpartition(".")
            below = f".{last}{below}"
        return name


def install(aliases: Mapping[str, str | dict[str, str]] = ALIASES) -> bool:
    """Whether they were not installed before."""
    if any(isinstance(finder, Finder) and finder.aliases is aliases for finder in sys.meta_path):
        return False
    sys.meta_path.insert(0, Finder(aliases))
    return True
