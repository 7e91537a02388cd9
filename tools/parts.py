"""The parts of this project, its launcher and its extensions, as tests/data/includes.txt has them.

    python tools/parts.py    # draws the table, and counts lines, in docs/architecture.md

tests/tidy.py checks the sources against the table, and that the page is current.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "data" / "includes.txt"
LAUNCHER = "launcher"


@dataclass
class Arrow:
    """One line of a source that includes a file or imports a module of this project."""

    path: Path
    line: int
    source: str  # the file, as the table names it: without its suffix
    target: str  # a file, or "elastic/NAME.h" for a public header

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass
class Parts:
    folders: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what each may include
    part_of: dict[str, str] = field(default_factory=dict)  # of a folder, or of a file
    purposes: dict[str, str] = field(default_factory=dict)  # of an extension: the comment above it
    meet: list[str] = field(default_factory=list)
    decide: dict[str, str] = field(default_factory=dict)  # files of the launcher: for an extension

    def folder_of(self, name: str) -> str | None:
        while name and name not in self.folders:
            name = name.rpartition("/")[0]
        return name or None

    def part(self, name: str) -> str:
        """The part of a file: its own line in the table, or that of its folder."""
        for known, part in self.part_of.items():
            if known.endswith("*") and name.startswith(known[:-1]):
                return part
        while name and name not in self.part_of:
            name = name.rpartition("/")[0]
        return self.part_of.get(name, LAUNCHER)

    def allows(self, folder: str, target: str) -> bool:
        within = (folder, *self.folders[folder])
        return any(target == one or target.startswith(f"{one}/") for one in within)


def load() -> Parts:
    parts, part = Parts(), ""
    comment: list[str] = []
    names: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines():
        text = line.strip()
        if not text:
            comment = []
        elif text.startswith("#"):
            comment.append(text[2:])
        elif text.startswith("@"):
            name, _, value = text.partition(" = ")
            names[name] = value.split()
        elif text.startswith("["):
            part = text.strip("[]")
            parts.purposes[part] = " ".join(comment)
        elif part == "meet":
            name, colon, extension = text.partition(": ")
            if colon:
                parts.decide[name] = extension
            else:
                parts.meet.append(name)
        else:
            folder, colon, value = text.partition(":")
            parts.part_of[folder] = part
            if colon:
                top = "python/" if folder.startswith("python/") else ""
                words = [w for word in value.split() for w in names.get(word, [word])]
                parts.folders[folder] = tuple(top + word for word in words)
    del parts.purposes["meet"]
    return parts


def sources() -> list[Path]:
    """The sources of csrc and python/elastic."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "csrc", "python/elastic"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    suffixes = (".h", ".cc", ".py", ".js", ".css", ".html")
    return [ROOT / one for one in listed if one.endswith(suffixes) and (ROOT / one).is_file()]


def name_of(path: Path) -> str:
    """As the table names a file: core/job/job, python/cli/main."""
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    if name.startswith("csrc/include/"):
        return name.removeprefix("csrc/include/")
    return name.removeprefix("csrc/").replace("python/elastic/", "python/")


def own_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of each module of ours, or name in one, that a Python file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "elastic")


def arrows() -> Iterator[Arrow]:
    for path in sources():
        name = name_of(path)
        if path.suffix == ".py":
            if path.name == "__init__.py":
                continue  # lists the public names of all modules of its package
            for line, imported in own_imports(path):
                target = imported.replace("elastic", "python", 1).replace(".", "/")
                yield Arrow(path, line, name, target)
        elif path.suffix in (".h", ".cc") and not name.startswith("elastic/"):
            for number, text in enumerate(path.read_text().splitlines(), 1):
                if found := re.match(r'#include "(.+)"', text):
                    yield Arrow(path, number, name, found[1])


def named(parts: Parts) -> Iterator[Arrow]:
    """Each use of a C++ type of an extension by its qualified name, whatever header it is from."""
    headers = [path for path in sources() if path.suffix == ".h"]
    declared: dict[tuple[str, str], str] = {}  # (namespace, type): its file
    for path in headers:
        name, text = name_of(path), path.read_text()
        space = re.search(r"^namespace (?:\w+::)*(\w+) \{", text, re.MULTILINE)
        if space is None or parts.part(name) == LAUNCHER:
            continue
        types = re.findall(
            r"^(?:struct|class|enum class|using) (\w+)(?= [:={])", text, re.MULTILINE
        )
        declared |= {(space[1], one): name for one in types}
    for path in sources():
        if path.suffix not in (".h", ".cc"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for use in re.findall(r"\b(\w+)::(\w+)", line.partition("//")[0]):
                if use in declared:
                    yield Arrow(path, number, name_of(path), declared[use])


def strays(parts: Parts) -> Iterator[Arrow]:
    """From the launcher to an extension, but not from a file of `meet`."""
    for arrow in itertools.chain(arrows(), named(parts)):
        is_from_launcher = parts.part(arrow.source) == LAUNCHER and arrow.source not in parts.meet
        if is_from_launcher and parts.part(arrow.target.removesuffix(".h")) != LAUNCHER:
            yield arrow


def lines_of(path: Path) -> int:
    """Lines of code: neither empty nor only a comment."""
    marks = ("#",) if path.suffix == ".py" else ("//",)
    lines = (line.strip() for line in path.read_text().splitlines())
    return sum(bool(line) and not line.startswith(marks) for line in lines)


def sizes(parts: Parts) -> Counter[str]:
    """Lines of code of each part."""
    found: Counter[str] = Counter()
    for path in sources():
        found[parts.part(name_of(path))] += lines_of(path)
    return found


LAYERS = {
    "python": "python/elastic",
    "host": "csrc/host",
    "os": "csrc/os",
    "core": "csrc/core",
    "guardian": "csrc/guardian",
}


def picture(parts: Parts) -> list[str]:
    """A row for each layer: the launcher's folders, where extensions are attached, extensions."""
    rows = []
    for layer, folder in LAYERS.items():

        def within(names: Iterable[str], layer: str = layer) -> list[str]:
            prefix = f"{layer}/"
            below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            return below + [name for name in names if name == layer]

        folders = [one for one in parts.folders if "/_" not in one]
        mine = within([one for one in folders if parts.part_of[one] == LAUNCHER])
        columns = [
            textwrap.wrap(" ".join(words), width, break_long_words=False)
            for words, width in (
                (mine, 30),
                (within([*parts.meet, *parts.decide]), 32),
                (within([one for one in parts.folders if parts.part_of[one] != LAUNCHER]), 24),
            )
        ]
        columns.insert(0, [folder])
        rows += [*itertools.zip_longest(*columns, fillvalue=""), ("", "", "", "")]
    head = ("layer", "launcher", "extensions are attached in", "extensions")
    return [
        f"{a:<16}{b:<32}{c:<34}{d}".rstrip() for a, b, c, d in [head, ("", "", "", ""), *rows[:-1]]
    ]


def attached(parts: Parts, extension: str) -> list[str]:
    """The files of `meet` that include a file of the extension, or decide for it."""
    found = [
        arrow.source
        for arrow in arrows()
        if arrow.source in parts.meet and parts.part(arrow.target.removesuffix(".h")) == extension
    ]
    deciding = [name for name, one in parts.decide.items() if one == extension]
    return sorted(set(found), key=parts.meet.index) + deciding


def rounded(lines: int) -> str:
    return f"{lines / 1000:.1f} k" if lines >= 950 else str(round(lines, -1))


def paragraphs(parts: Parts) -> list[str]:
    found = []
    counted = sizes(parts)
    for extension, purpose in parts.purposes.items():
        if extension == LAUNCHER:
            continue
        text, _, page = purpose.rpartition(": docs/")
        where = ", ".join(f"`{one}`" for one in attached(parts, extension))
        folders = [one for one in parts.folders if parts.part_of[one] == extension]
        found += [
            f"**{extension.capitalize()}** ([{page}]({page})): {text}. "
            f"Folders: {', '.join(f'`{one}`' for one in folders)}. Attached in {where}; "
            f"{rounded(counted[extension])} lines of code.",
            "",
        ]
    launcher = counted[LAUNCHER]
    found.append(
        f"The launcher has {rounded(launcher)} lines of code, its extensions "
        f"{rounded(sum(counted.values()) - launcher)}."
    )
    return found


PAGE = ROOT / "docs" / "architecture.md"


def section(name: str, text: str) -> re.Match[str]:
    found = re.search(rf"(?s)(<!-- {name}:[^\n]*-->\n)(.*?)(\n<!-- end of {name} -->)", text)
    assert found is not None, f"{PAGE} has no section {name}"
    return found


def written(text: str, parts: Parts) -> str:
    """The page with the picture and the paragraphs as they are now."""
    texts = {
        "picture": "\n".join(["```", *picture(parts), "```"]),
        "extensions": "\n".join(paragraphs(parts)),
    }
    for name, new in texts.items():
        old = section(name, text)
        text = text[: old.start(2)] + new + text[old.end(2) :]
    return text


NUMBER = re.compile(r"\b([\d.]+( k)?)(?= lines of code|\.$)", re.MULTILINE)


def is_current(text: str, parts: Parts) -> bool:
    """Whether the page has the same words, and numbers that are not wrong by more than a tenth."""

    def numbers(page: str) -> list[float]:
        found = [one[0].replace(" k", "e3") for one in NUMBER.findall(page)]
        return [float(one) for one in found]

    new = written(text, parts)
    is_near = [
        abs(old - now) <= max(now / 10, 30)
        for old, now in zip(numbers(text), numbers(new), strict=False)
    ]
    return all(is_near) and NUMBER.sub("", text) == NUMBER.sub("", new)


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(), load()))


if __name__ == "__main__":
    main()
