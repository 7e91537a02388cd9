"""Checks of a host that ``--node-check`` has built in. docs/policy.md has their conventions.

Each is a program of its own: ``python -m elastic.checks.gpu``.
"""
