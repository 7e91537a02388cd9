"""How the C++ library is installed."""

from __future__ import annotations

# The README's commands, which test_readme.py compares with the README.
INSTALL_LIBRARY = [
    "cmake -S . -B build/install -DCMAKE_INSTALL_PREFIX=$HOME/elastic",
    "cmake --build build/install --parallel 4",
    "cmake --install build/install",
]
