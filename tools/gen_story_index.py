"""Writes tests/data/scenarios/README.md: what the stories of each file are about.

python tools/gen_story_index.py            write the page
python tools/gen_story_index.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

STORIES = Path(__file__).resolve().parents[1] / "tests/data/scenarios"
PAGE = STORIES / "README.md"
SUBJECTS = {
    "rendezvous": "the rendezvous of a job, in its coordinator",
    "drain": "stops at an agreed step, in the coordinator",
    "hang": "the judge of hangs, in the coordinator",
    "agent": "what the agent of a node decides",
    "session": "the session of a node with its coordinator",
    "record": "a store that keeps the job's record",
}
FIRST = re.compile(r"(job|agent|node|store)( |$)")  # a story begins with it
HEAD = """\
# Stories

What each machine of `csrc/core` does in a situation, event by event: {total} stories in {files}
files, which a test plays. [CONTRIBUTING](../../../CONTRIBUTING.md#scenarios) has the format.
Written by `tools/gen_story_index.py`.
"""


def page() -> str:
    files = sorted(STORIES.glob("*/*.txt"))
    parts = [HEAD.format(total=sum(map(told, files)), files=len(files))]
    for folder, subject in SUBJECTS.items():
        parts.append(f"## {folder}: {subject}\n")
        parts += [
            f"* [{path.stem}]({folder}/{path.name}), {told(path)}: {about(path)}"
            for path in files
            if path.parent.name == folder
        ]
        parts.append("")
    return "\n".join(parts)


def told(path: Path) -> int:
    """The stories of a file: each begins with a new machine."""
    count, is_trace = 0, False
    for line in path.read_text().splitlines():
        is_trace = line == "----" or (is_trace and bool(line))
        count += not is_trace and bool(FIRST.match(line))
    return count


def about(path: Path) -> str:
    first = re.match(r"(?:# .*\n)+", path.read_text())
    return " ".join(line.lstrip("# ") for line in first[0].splitlines()) if first else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    fresh = page()
    if given.check:
        return int(not PAGE.exists() or PAGE.read_text() != fresh)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
