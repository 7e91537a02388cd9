"""The parser of a subcommand's arguments: reports an error in one line, as the launcher does."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from elastic import _C


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} ({self.prog} --help)", file=sys.stderr)
        raise SystemExit(_C.EXIT_USAGE)
