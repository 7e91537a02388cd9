"""Checks of a host that ``--node-check`` has built in. docs/node-checks.md has their conventions.

Each is a program of its own: ``python -m elastic.checks.gpu``.
"""
