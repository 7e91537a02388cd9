"""What a Python worker runs before its script. The folder is first in the worker's PYTHONPATH."""
