"""The checks that need a GPU. ``python -m bench.gpu`` runs them."""

import bench.faults  # noqa: F401  # makes the harness of the benchmarks importable
