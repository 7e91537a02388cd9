"""Prints the slowest tests of JUnit files: ``python tests/slowest.py DIRECTORY [NUMBER]``."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(directory: str, number: str = "20") -> None:
    found = []
    for file in sorted(Path(directory).glob("*.xml")):
        cases = list(ElementTree.parse(file).iter("testcase"))
        seconds = [float(case.get("time") or 0.0) for case in cases]
        print(f"{sum(seconds):8.1f} s in {len(cases)} tests of {file.stem}")
        for case, took in zip(cases, seconds, strict=True):
            place = case.get("classname") or ""
            name = case.get("name") or ""
            found.append((took, file.stem, name if place == name else f"{place}.{name}"))
    for took, step, name in sorted(found, reverse=True)[: int(number)]:
        print(f"{took:8.1f} s  {step}  {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
