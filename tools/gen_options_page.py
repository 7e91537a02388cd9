"""Writes the lists of options in docs/cli.md from the table of elastic.cli.options.

python tools/gen_options_page.py            write the page
python tools/gen_options_page.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from elastic.cli.options import GROUPS, PROGRAM, Option

PAGE = Path(__file__).resolve().parents[1] / "docs/cli.md"
BEGIN = (
    "<!-- options: written by tools/gen_options_page.py from python/elastic/cli/options.py -->\n"
)
END = "<!-- end of options -->\n"
PAGE_OF_MANUAL = re.compile(rf"{PROGRAM} help ([a-z][\w-]*)")


def row(option: Option) -> str:
    *others, long = option.flags
    flags = [*others, f"{long} {option.metavar}".rstrip()]
    left = ", ".join(f"`{flag}`" for flag in flags)
    default = f"`{option.default}`" if option.default else option.unset
    text = f"{option.help} {option.more}".rstrip()
    return f"* {left}{f' (default: {default})' if default else ''}: {linked(text)}"


def linked(text: str) -> str:
    """The commands that print a page of the manual, as links to it."""
    text = text.replace(f" ({PROGRAM} help cli)", " ([keys](#several-nodes))")
    return PAGE_OF_MANUAL.sub(lambda match: f"[{match[1].replace('-', ' ')}]({match[1]}.md)", text)


def lists() -> str:
    parts = []
    for title, group in GROUPS:
        parts += [f"### {title}", ""]
        parts += [*map(row, group), ""]
    return "\n".join(parts)


def page(text: str) -> str:
    """The page with new lists between the two marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE} has no two lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{lists()}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    text = PAGE.read_text(encoding="utf-8")
    fresh = page(text)
    if parser.parse_args().check:
        return int(text != fresh)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
