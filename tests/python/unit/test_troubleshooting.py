"""docs/troubleshooting.md quotes messages of the program, and has every message of its operators.

A message is what a console shows without LOGLEVEL, or the reason with which a job ends:

* in C++ the literals of one statement with at least four words, in the files of MESSAGES;
* in Python what is logged at NOTICE or higher, and what is raised, except invalid arguments
  (``ConfigError`` and Python's own exceptions for them), which name what is expected.

A statement is on the page if one of the page's quotes is a part of it. EXEMPT has the others, by
reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
# Operators read the messages of these most often: each literal must be on the page.
IN_FULL = (
    "core/session/session_connection.cc",
    "host/coordinator/hosting.cc",
    "host/membership/session_link.cc",
)
SHORTEST_PART = 22  # characters; a shorter literal is a part that means nothing alone
SHORTEST_QUOTE = 9  # characters; a shorter one is in too many messages
WORDS = 4
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')

MESSAGES = (
    "core/agent",
    "core/base/describe.cc",
    "core/drain",
    "core/hang/hang_watch.cc",
    "core/rendezvous",
    "core/session/session_connection.cc",
    "core/session/session_machine.cc",
    "core/succession/succession_machine.cc",
    "core/succession/voter_keeper.cc",
    "core/succession/witnessed_job.cc",
    "core/workers",
    "host",
)
# Parts of statements. What is between two messages of a peer is in the logs of both as the reason
# of "a session of … is closed".
EXEMPT = {
    "why NCCL did not reply, which is not shown": (
        "the reply is not JSON", "the reply has no communicators", "no process listens",
        "another program listens", "this version of NCCL has no JSON", "the reply is too long",
        "the connection was closed",
    ),
    "what is searched in the output of a worker": ("exited unexpectedly", "double free or"),
    "an argument or setting, whose name and limits are in the message": (
        "min_nodes: ", "nnodes=", "max_nodes: ", "max_restarts: ", "max_membership_changes: ",
        "static ranks need a fixed number", "settings: ", ": must not be negative",
        "join: ", "an agent needs at least one worker", " has no program",
        "cannot be negative", "worker_ports: ", "needs an endpoint or a backend",
        "local_world_size: ", "run_id: ", "the list is empty", "its command is empty",
        "contains a NUL", "are too long", "its CPUs must be", "have not ended yet",
        "start_timeout must be", "inplace_grace must be", "inplace_prepare must be",
        "node_check_timeout must be",
        "this is a forked child", "the observer belongs to", "the client belongs to",
        "the client is closed", "is longer than ", "no round within the timeout", "the timeout is ",
        "the store's port is 0", "keys in one call", " bytes: at most ", "role: longer than",
        "(not static)", "failure policy: rule ",
    ),
    "a peer that breaks the protocol; follows 'a session of … is closed'": (
        "contradicts", "the round that the node holds is invalid", "its round was superseded",
        "of its own node only", "hello", "no messages of", "the magic is wrong",
        "it sent no greeting", "it sent a part of a message", "its first message is",
        "it sent a second greeting", "does not read", "it closed the connection",
        "it speaks another protocol", "announces a value", "has an unknown code",
        "an announced coordinator has no term",
        "rendezvous state: ", "the first message of a session",
    ),
    "logged at INFO, or the end of a message that is on the page": (
        "last lines of its stderr:",
        "continues from its stored state", "no node of the job is known here", " is complete: ",
        "the job is closed", "its last node has left", "no node has joined", "it succeeded",
        "more sessions were closed", "more connections between voters", "the job is over",
        "the job has ended", "the session of ", "the connection to ",
        "closed its connections…did not answer…handed it over",
        "has succeeded…", "the node of rank ", "the workers are in the state",
        "more nodes have joined", "more node has joined", "all nodes have finished",
        " grows when all of its nodes have resumed",
        "asked for a new round", "the workers of ", "the coordinator ended in order",
        "it does not coordinate the job any more", "the token…", ", waiting for …",
        "was not resolved in …", "a process that the workers left behind",
        ", the most recent call first", "the directory for temporary files", " done, waiting for ",
        "; the coordinator on this host tells it",
    ),
    "not a message: what other programs print, names of events, and text of exits": (
        "Traceback (most recent", ", in <module>", "can't open file", "set the CPU affinity",
        "killed by …", "the worker of local rank",
    ),
    "a rule, as --dry-run shows it": (
        "a program that cannot be executed", "fewer than MIN left", " in a row on one host",
        "this node leaves, with that code",
    ),
}  # fmt: skip


def literals(source: Path) -> Iterator[str]:
    """The string literals of a file; adjacent ones of C++ are joined."""
    text = source.read_text()
    if source.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
        return
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'"\s*\n?\s*(?:\+\s*)?"', "", text)
    for found in LITERAL.finditer(text):
        yield found[1]


def cpp_messages(source: Path) -> Iterator[str]:
    """The literals of each statement, joined by "…"."""
    text = re.sub(r"^\s*//.*$|^#include.*$", "", source.read_text(), flags=re.MULTILINE)
    text = re.sub(r'"\s*\n\s*"', "", text)
    found: list[str] = []

    def number(literal: re.Match[str]) -> str:
        found.append(literal[1])
        return f"\1{len(found) - 1}\2"

    for statement in re.split(r"[;{}]", LITERAL.sub(number, text)):
        message = "…".join(found[int(one)] for one in re.findall("\1(\\d+)\2", statement))
        if len(re.findall(r"[A-Za-z]{2,}", message)) >= WORDS and " " in message:
            yield message


def text_of(node: ast.expr) -> str:
    """The constant parts of an expression, joined by "…"."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "…".join(text_of(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return f"{text_of(node.left)}…{text_of(node.right)}"
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)}…{text_of(node.orelse)}"
    return ""


def python_messages(source: Path) -> Iterator[str]:
    quiet = ("ConfigError", "TypeError", "ValueError", "AttributeError", "ImportError")
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call, is_shown = node.exc, ast.unparse(node.exc.func) not in (*quiet, "RuntimeError")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            call, name = node, node.func.attr
            level = ast.unparse(node.args[0]) if node.args else ""
            is_shown = name in ("warning", "error", "exception", "_write_line") or (
                name in ("_log", "log") and level.rpartition(".")[2] in ("NOTICE", "WARNING")
            )
            is_shown = is_shown or ast.unparse(node.func).endswith("warnings.append")
        else:
            continue
        message = "…".join(filter(None, map(text_of, call.args)))
        if is_shown and len(re.findall(r"[A-Za-z]{2,}", message)) >= 2 and " " in message:
            yield message


def sources() -> str:
    files = [*(ROOT / "csrc").rglob("*.cc"), *(ROOT / "csrc").rglob("*.h")]
    files += (ROOT / "python").rglob("*.py")
    return "\0".join(text for file in files for text in literals(file))


def quotes() -> list[str]:
    """The code spans of the entries of messages, before the dash."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("* `"):
            found += re.findall(r"`([^`]+)`", line.split(" — ")[0])
    return found


def files_of_messages() -> Iterator[Path]:
    for name in MESSAGES:
        path = ROOT / "csrc" / name
        yield from sorted(path.rglob("*.cc")) if path.is_dir() else [path]


def test_every_quoted_message_is_a_message_of_the_program() -> None:
    every = sources()
    assert len(quotes()) > 60
    unknown = [quote for quote in quotes() if quote.strip() not in every]
    assert unknown == []


def test_every_message_is_on_the_page() -> None:
    shown = [quote.strip() for quote in quotes() if len(quote.strip()) >= SHORTEST_QUOTE]
    exempt = [part for parts in EXEMPT.values() for part in parts]
    every = [(file, one) for file in files_of_messages() for one in cpp_messages(file)]
    for file in sorted((ROOT / "python").rglob("*.py")):
        every += [(file, one) for one in python_messages(file)]
    assert len(every) > 200
    missing = [
        f"{file.relative_to(ROOT)}: {message}"
        for file, message in every
        if not any(part in message for part in (*shown, *exempt))
    ]
    assert missing == [], "add an entry to docs/troubleshooting.md"
    useless = [part for part in exempt if not any(part in message for _, message in every)]
    assert useless == []


def test_every_part_of_a_message_about_the_coordinator_is_on_the_page() -> None:
    page = PAGE.read_text()
    missing = [
        text
        for name in IN_FULL
        for text in literals(ROOT / "csrc" / name)
        if len(text) >= SHORTEST_PART and " " in text and text.strip(" :,") not in page
    ]
    assert missing == []


def test_every_exit_code_of_the_launcher_is_explained() -> None:
    header = (ROOT / "csrc/include/elastic/agent.h").read_text()
    codes = re.findall(r"kExit\w+ = (\d+)", header)
    explained = (ROOT / "docs/troubleshooting.md").read_text()
    assert len(codes) >= 9
    assert [code for code in codes if f"| {code} |" not in explained] == []
