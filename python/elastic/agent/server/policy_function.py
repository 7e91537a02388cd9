"""Asks the function of a failure policy about failed workers (docs/policy.md).

The function runs in a thread of its own, one call at a time. The native agent waits for the answers
a limited time, and then decides without them.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, get_args

from elastic import _C
from elastic._plug_in import plug_in, registered
from elastic.agent.server.api import WorkerSpec
from elastic.errors import ConfigError, ElasticError
from elastic.policy import Action, Decision, Failure

logger = logging.getLogger(__name__)

ENTRY_POINTS = "elastic.policy"

Call = Callable[[Failure], Decision | str | None]


class PolicyFunction:
    def __init__(self, name: str, call: Call, spec: WorkerSpec) -> None:
        self._name = name
        self._call = call
        self._spec = spec
        self._questions: SimpleQueue[tuple[_C.Agent, _C.RoundInfo, _C.WorkerFailure]] = (
            SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    @classmethod
    def named(cls, name: str, spec: WorkerSpec) -> PolicyFunction:
        """``name``: of an entry point, or MODULE:NAME. Raises ConfigError."""
        try:
            call = _load(name)
        except ConfigError:
            raise
        except Exception as error:  # of the module
            raise ConfigError(
                f"the policy function {name!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not callable(call):
            raise ConfigError(f"the policy function {name!r} is a {type(call).__name__}")
        return cls(name, call, spec)

    def ask(self, native: _C.Agent, event: _C.AgentEvent) -> None:
        """``event``: ADVICE_ASKED."""
        if event.round is None or event.failure is None:
            return
        self._questions.put((native, event.round, event.failure))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=ENTRY_POINTS, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            native, info, failure = self._questions.get()
            decision: Decision | None = None
            with plug_in(f"policy function {self._name}"):
                decision = self._decide(info, failure)
            action = None if decision is None else _C.FailureAction.__members__[decision.do.upper()]
            with contextlib.suppress(ElasticError):  # the agent has ended
                native.advise(
                    info,
                    failure.local_rank,
                    action,
                    counts=None if decision is None else decision.count,
                    source=f"the policy function {self._name}",
                    reason="" if decision is None else decision.reason,
                )

    def _decide(self, info: _C.RoundInfo, failure: _C.WorkerFailure) -> Decision | None:
        """Raises what the function raises, and ValueError for another value than it may return."""
        evidence = failure.evidence
        asked = Failure(
            run_id=self._spec.job_id(),
            round=info.round,
            rank=failure.rank,
            local_rank=failure.local_rank,
            host=evidence.host,
            exit_code=failure.exit_code,
            message=failure.message,
            error=evidence.error,
            output=evidence.output,
            failure_class=evidence.failure_class.replace(" ", "-"),
            cause=evidence.cause,
            restart_count=info.restart_count,
            max_restarts=self._spec.max_restarts,
        )
        try:
            found = self._call(asked)
        except SystemExit as error:
            raise RuntimeError(f"it called sys.exit({error.code!r})") from error
        return _checked(found)


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if attribute:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    entry = registered(ENTRY_POINTS, name)
    if entry is None:
        raise ConfigError(
            f"there is no policy function {name!r}: no installed distribution registers it in the "
            f"entry points {ENTRY_POINTS}; MODULE:NAME names a function directly"
        )
    return entry.load()


def _checked(found: object) -> Decision | None:
    if found is None:
        return None
    decision = Decision(found) if isinstance(found, str) else found  # type: ignore[arg-type]
    if not isinstance(decision, Decision) or decision.do not in get_args(Action):
        raise ValueError(f"it returned {found!r}: expected one of {', '.join(get_args(Action))}")
    if decision.count is not None and not isinstance(decision.count, bool):
        raise ValueError(f"count is {decision.count!r}: expected True, False or None")
    return replace(decision, reason=" ".join(str(decision.reason).split()))
