"""Iteration over data in an elastic job."""

from elastic.utils.data.cycling_iterator import CyclingIterator

__all__ = ["CyclingIterator"]
