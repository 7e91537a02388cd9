"""The command line under torch's module name: ``python -m elastic.run`` is ``elastic-launch``."""

from elastic.cli.main import console_main, main

__all__ = ["console_main", "main"]

if __name__ == "__main__":
    console_main()
