"""Writes the Python part of docs/api.md from the docstrings of the installed package.

python tools/gen_api_page.py            write the page
python tools/gen_api_page.py --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import ast
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/api.md"
MODULES = ("elastic", "elastic.launcher")
# torch documents these.
AS_IN_TORCH = (
    "elastic.agent.server",
    "elastic.rendezvous",
    "elastic.multiprocessing",
    "elastic.multiprocessing.errors",
    "elastic.events",
    "elastic.metrics",
    "elastic.timer",
    "elastic.utils",
)
FIRST = "## elastic\n"  # what precedes it is written by hand


def documentation(thing: Any) -> tuple[str, str]:
    """Signature and text; native functions have their signature in the docstring's first line."""
    text = inspect.getdoc(thing) or ""
    first, _, rest = text.partition("\n")
    if re.match(r"\w+\(.*\)( -> .*)?$", first):
        signature = re.sub(r"self: [\w.]+(, )?", "", first[first.index("(") :])
        return signature.replace("elastic._C.", ""), rest.strip()
    if isinstance(thing, type) and issubclass(thing, (enum.Enum, Exception)):
        return "", text.strip()
    try:
        signature = str(inspect.signature(thing))
    except (TypeError, ValueError):
        signature = ""
    signature = re.sub(
        r"ForwardRef\('([^']*)'\)|(?<=: )'([^']*)'|(?<=-> )'([^']*)'", r"\1\2\3", signature
    )
    signature = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", signature)
    signature = re.sub(r"^\((self|cls)(, )?", "(", signature)
    return signature.removesuffix(" -> None"), text.strip()


def quoted(text: str) -> str:
    """A docstring as Markdown: its indented examples become code blocks."""
    blocks = []
    for block in re.split(r"\n\n(?=\S)", text):
        plain, _, code = block.partition("\n\n    ")
        blocks.append(plain)
        if code:
            blocks.append("```\n" + inspect.cleandoc("    " + code) + "\n```")
    return "\n\n".join(blocks)


def members(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name.startswith("_") or isinstance(value, enum.Enum):
            continue
        if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
            yield name, getattr(owner, name)  # which finds inherited docstrings, too


def untyped(signature: str) -> str:
    """The signature without the types of the parameters."""
    signature = re.sub(r"<[^<>]*>", "...", signature)  # a default that has no expression
    whole = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(whole, ast.FunctionDef)
    every = whole.args
    for parameter in (
        *every.posonlyargs,
        *every.args,
        *every.kwonlyargs,
        every.vararg,
        every.kwarg,
    ):
        if parameter is not None:
            parameter.annotation = None
    returned = f" -> {ast.unparse(whole.returns)}" if whole.returns else ""
    return f"({ast.unparse(every)}){returned}".removesuffix(" -> None")


def section(name: str, thing: Any, seen: set[tuple[str, str]]) -> Iterator[str]:
    if not callable(thing):
        yield f"### {name}\n\nA value: `{type(thing).__name__}`."
        return
    signature, text = documentation(thing)
    yield f"### {name}"
    if signature:
        yield f"```\n{name}{untyped(signature)}\n```"
    if text and not text.startswith(f"{name}("):
        yield quoted(text)
    if not isinstance(thing, type):
        return
    if issubclass(thing, enum.Enum):
        yield "Values: " + ", ".join(f"`{one.name}`" for one in thing) + "."
    rows = []
    for member, value in members(thing):
        signature, text = documentation(value)
        if not text:
            continue
        what = "" if isinstance(value, property) else untyped(signature)
        summary = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
        summary = re.split(r"(?<=[.]) (?=[A-Z])", summary)[0]
        if (member, summary) in seen:
            continue
        seen.add((member, summary))
        rows.append(f"* `{member}{what}`: {summary}")
    if rows:
        yield "\n".join(rows)


def page() -> str:
    parts = [PAGE.read_text().partition(FIRST)[0].rstrip()]
    seen: set[str] = set()
    methods: set[tuple[str, str]] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        parts.append(f"## {module_name}")
        if text := inspect.getdoc(module):
            parts.append(quoted(text))
        for name in sorted(set(module.__all__) - {"__version__"} - seen, key=str.lower):
            parts += section(name, getattr(module, name), methods)
            seen.add(name)
    parts.append("## Modules as in torch\n\nNames and arguments are those of torch elastic.")
    for module_name in AS_IN_TORCH:
        module = importlib.import_module(module_name)
        names = sorted(set(module.__all__) - {"__version__"} - seen, key=str.lower)
        parts.append(f"**{module_name}**: " + ", ".join(f"`{name}`" for name in names) + ".")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    fresh = page()
    if parser.parse_args().check:
        return int(PAGE.read_text() != fresh)
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
