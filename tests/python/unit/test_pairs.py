"""tests/data/pairs.txt has a line for each pair of capabilities, with tests that exist."""

import re
from itertools import combinations
from pathlib import Path

TESTS = Path(__file__).parents[2]
TABLE = (TESTS / "data/pairs.txt").read_text()
CAPABILITIES = re.findall(r"^#   ([\w-]+) ", TABLE, re.MULTILINE)
LINES = dict(re.findall(r"^([\w-]+ [\w-]+): (.+)$", TABLE, re.MULTILINE))


def test_each_pair_has_a_line() -> None:
    assert len(CAPABILITIES) == 14
    assert list(LINES) == [" ".join(pair) for pair in combinations(CAPABILITIES, 2)]


def test_each_test_exists() -> None:
    missing = []
    for pair, places in LINES.items():
        if places == "open" or re.fullmatch(r"none: .+", places):
            continue
        for place in places.split("; "):
            path, _, words = place.partition(" ")
            file = TESTS / path
            if not words or not file.is_file() or words not in file.read_text():
                missing.append(f"{pair}: {place}")
    assert missing == []
