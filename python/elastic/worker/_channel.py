"""Opens the worker's channel, and the section that a ``with`` statement brackets."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name
if TYPE_CHECKING:
    from elastic import _worker
else:
    try:
        from elastic import _worker
    except ImportError:  # another system, or a source tree without the build
        from elastic.worker import _absent as _worker

calls = _worker


class section:
    """A part of the script in which no step is completed, such as an evaluation or a checkpoint.

    Its begin and its end count as progress. ``limit``: how many seconds it may take before it is
    reported as a hang, if that is longer than the limit of a step.
    """

    __slots__ = ("_limit", "_name")

    def __init__(self, name: str, limit: float = 0.0) -> None:
        self._name = name
        self._limit = limit

    def __enter__(self) -> None:
        calls.enter(self._name, self._limit)

    def __exit__(self, *_: object) -> None:
        calls.leave()


def open() -> None:
    """Opens the channel, and offers the stacks of this process's threads on request."""
    if not calls.open():
        return
    import faulthandler

    number = calls.free_signal()
    if number:
        faulthandler.register(number, file=calls.stacks_descriptor(), all_threads=True)
        calls.offer_stacks(number)
