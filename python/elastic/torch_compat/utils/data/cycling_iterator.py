"""Several epochs as one iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class CyclingIterator(Iterator[T], Generic[T]):
    """The elements of epochs 0 to ``n - 1``; ``generator_fn`` makes the iterator of an epoch."""

    def __init__(
        self, n: int, generator_fn: Callable[[int], Iterator[T]], start_epoch: int = 0
    ) -> None:
        self._n = n
        self._epoch = start_epoch
        self._make = generator_fn
        self._iterator = generator_fn(start_epoch)

    def __iter__(self) -> CyclingIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                return next(self._iterator)
            except StopIteration:
                if self._epoch + 1 >= self._n:
                    raise
            self._epoch += 1
            self._iterator = self._make(self._epoch)
