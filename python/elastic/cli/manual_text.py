"""The manual's Markdown as text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterator

from elastic.cli.options import PROGRAM

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", re.DOTALL | re.MULTILINE)
_FOLDED = re.compile(r"^</?details.*\n", re.MULTILINE)
_PICTURE = re.compile(r"^!\[([^\]]*)\]\([^)]*\)\n", re.MULTILINE)
# To another page of the manual; to a place in this one; to a file of the sources.
_PAGE = re.compile(r"\[([^\]]+)\]\(([\w-]+)\.md(?:#([\w-]*))?\)")
_ONLY_PAGE = re.compile(rf"\({_PAGE.pattern}\)")
_HERE = re.compile(r"\[([^\]]+)\]\(#[\w-]*\)")
_SOURCE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)(?:#[\w-]*)?\)")
_EMPHASIS = re.compile(r"\*([^*\s][^*]*)\*")
_MARK = re.compile(r"\s*(?:[-*] |#+ |\d+\. )")
_CELL = re.compile(r"(?<!\\)\|")
_WIDEST = 36  # characters of the first column
_AROUND = 60  # characters on each side of a word that was found


def slug(heading: str) -> str:
    """A heading as one word, as in an address."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def without_links(text: str, sections: Container[str] = ()) -> str:
    """A terminal cannot follow a link: it becomes the command that prints the page or section.

    ``sections``: the headings, as slugs, that one page has.
    """

    def command(found: re.Match[str]) -> str:
        return f"`{PROGRAM} help {found[3] if found[3] in sections else found[2]}`"

    def alone(found: re.Match[str]) -> str:
        is_name = slug(found[1].removesuffix(".md")) in (found[2], found[3])
        return f"({command(found)})" if is_name else f"({found[1]}: {command(found)})"

    text = _PICTURE.sub("", _FOLDED.sub("", _COMMENT.sub("", text)))
    text = _DIAGRAM.sub("(The sources show a diagram here.)\n\n", text)
    text = _ONLY_PAGE.sub(alone, text)
    text = _PAGE.sub(lambda found: f"{found[1]} ({command(found)})", text)
    return _SOURCE.sub(_to_source, _HERE.sub(r"\1", text))


def _to_source(found: re.Match[str]) -> str:
    return found[1] if found[2] in found[1] else f"{found[1]} ({found[2]} in the sources)"


def passages(text: str) -> Iterator[str]:
    """Headings, rows of tables and lines of code as they are; other paragraphs as one line each."""
    is_code = False
    words: list[str] = []
    for line in [*text.splitlines(), ""]:
        if words and not _continues(line):
            yield " ".join(words)
            words = []
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            yield f"    {line}"
        elif not words and line.startswith(("#", "|", "    ")):
            yield line
        elif line.strip():
            words.append(line.strip())


def pattern(word: str) -> re.Pattern[str]:
    """The word, with or without a plural's or a verb's ending, but not inside another word."""
    stem = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    ending = "(?:e?s|ed|ing)?" if stem[-1:].isalpha() else ""
    return re.compile(rf"(?<![a-z]){re.escape(stem)}{ending}(?![a-z])", re.IGNORECASE)


def around(line: str, sought: re.Pattern[str]) -> str:
    """The part of a line around the first place of a word."""
    text = _EMPHASIS.sub(r"\1", _inline(_MARK.sub("", line, count=1))).replace("|", " ").strip()
    found = sought.search(text)
    at, end = found.span() if found else (0, 0)
    first, last = max(0, at - _AROUND), end + _AROUND
    first = text.rfind(" ", 0, first) + 1
    part = text[first:last].strip()
    return ("…" if first else "") + part + ("…" if last < len(text) else "")


def plain(text: str, width: int) -> str:
    """Headings underlined, paragraphs wrapped, tables as columns or, if too wide, as lists."""
    return "\n".join(_blocks(text.splitlines(), width)).strip("\n") + "\n"


def _blocks(lines: list[str], width: int) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if line.startswith("```"):
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            yield from (f"    {one}".rstrip() for one in lines[at + 1 : end])
            end += 1
        elif line.startswith("|"):
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            yield from _table([_cells(row) for row in lines[at:end]], width)
        elif line.startswith("#"):
            title = _inline(line.lstrip("# "))
            yield from (title, ("=" if line.startswith("# ") else "-") * len(title))
        elif not line.strip() or line.startswith("    "):
            yield line.rstrip()
        else:
            indent = re.match(r"\s*(?:[-*] |\d+\. )?", line)
            assert indent is not None
            while end < len(lines) and _continues(lines[end]):
                end += 1
            words = " ".join(one.strip() for one in lines[at:end])
            yield from _wrapped(
                _inline(words), width, len(indent[0]), len(line) - len(line.lstrip())
            )
        at = end


def _continues(line: str) -> bool:
    return bool(line.strip()) and not re.match(r"\s*([-*] |\d+\. |#|\||```)", line)


def _wrapped(text: str, width: int, indent: int, first: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=" " * first, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _inline(text: str) -> str:
    return re.sub(r"\*\*|`|\\(?=[|*_])", "", text)


def _cells(row: str) -> list[str]:
    return [_inline(cell.strip()) for cell in _CELL.split(row.strip())[1:-1]]


def _table(rows: list[list[str]], width: int) -> Iterator[str]:
    head, *body = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    columns = [max(len(row[n]) if n < len(row) else 0 for row in (head, *body))
               for n in range(len(head))]  # fmt: skip
    if sum(columns) + 2 * len(columns) <= width:
        shown = [head, ["-" * len(cell) for cell in head], *body] if any(head) else body
        for row in shown:
            yield "  ".join(f"{cell:<{columns[n]}}" for n, cell in enumerate(row)).rstrip()
        return
    if len(head) == 2 and columns[0] <= _WIDEST:
        for name, text in body:
            left = columns[0] + 2
            lines = textwrap.wrap(text, max(20, width - left), break_long_words=False) or [""]
            yield f"{name:<{left}}{lines[0]}".rstrip()
            yield from (" " * left + line for line in lines[1:])
        return
    for row in body:
        yield from _wrapped(row[0], width, 0, 0)
        for title, cell in zip(head[1:], row[1:], strict=False):
            if cell:
                label = f"{title}: " if title else ""
                yield from _wrapped(f"{label}{cell}", width, 4, 4)
