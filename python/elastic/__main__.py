"""``python -m elastic`` is ``elastic-launch``."""

from elastic.run import console_main

if __name__ == "__main__":
    console_main()
