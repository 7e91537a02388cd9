"""Exchanges between ranks over a store with torch's methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

DEFAULT_TIMEOUT_S = 300.0


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Sets the store's timeout in seconds for a block."""
    before = store.timeout
    set_timeout = getattr(store, "set_timeout", None)
    if set_timeout is None:
        store.timeout = timeout
    else:
        set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        if set_timeout is None:
            store.timeout = before
        else:
            set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """The values of ``prefix0`` to ``prefixN-1``. Rank 0 returns when every rank has them."""
    values = list(store.multi_get([f"{prefix}{other}" for other in range(world_size)]))
    last = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0:  # it may host the store
        store.wait([last])
    return values


def _arrive(store: Any, world_size: int, key_prefix: str) -> str:
    """Counts this rank; returns the key that the last one sets."""
    last = f"{key_prefix}/last_member"
    if store.add(f"{key_prefix}/num_members", 1) == world_size:
        store.set(last, "<val_ignored>")
    return last


def synchronize(
    store: Any,
    data: bytes,
    rank: int,
    world_size: int,
    key_prefix: str,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> list[bytes]:
    """Sends this rank's value and returns the values of all ranks, by rank."""
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = DEFAULT_TIMEOUT_S,
    rank: int | None = None,
    rank_tracing_decoder: Any = None,
    trace_timeout: float = 10,
) -> None:
    """Waits until ``world_size`` callers have arrived. ``key_prefix`` is used once.

    With ``rank`` a timeout names the ranks that did not arrive, through ``rank_tracing_decoder``.
    """
    with store_timeout(store, barrier_timeout):
        if rank is not None:
            store.set(f"{key_prefix}{rank}/TRACE", "<val_ignored>")
        last = _arrive(store, world_size, key_prefix)
        try:
            store.wait([last])
        except (RuntimeError, TimeoutError) as error:
            if rank is None:
                raise
            decode = rank_tracing_decoder or str
            missing = [
                str(decode(other))
                for other in range(world_size)
                if not store.check([f"{key_prefix}{other}/TRACE"])
            ]
            raise type(error)(
                f"{error}: not all ranks reached the barrier {key_prefix}: "
                f"missing_ranks=[{', '.join(missing)}]"
            ) from error
