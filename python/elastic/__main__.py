"""``python -m elastic`` is ``elastic-launch``."""

from elastic.cli.main import console_main

if __name__ == "__main__":
    console_main()
