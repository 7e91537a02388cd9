"""The style rules that a program can check, as tests over the source text.

Run it with ``python -m pytest tests/tidy.py``. CONTRIBUTING.md gives the reasons.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from tools import parts

ROOT = Path(__file__).resolve().parent.parent
CPP_SUFFIXES = {".h", ".cc"}

SOURCE_LINES_MAX = 700
PUBLIC_HEADER_LINES_MAX = 250
COLUMNS_MAX = 100

# cli/main.py hands os.environ to resolve.py, function_worker.py runs before elastic is importable.
ENVIRONMENT_READERS = (
    "elastic/cli/main.py",
    "elastic/_environment.py",
    "elastic/multiprocessing/function_worker.py",
    "elastic/_site/elastic_hook.py",
    "elastic/_site/sitecustomize.py",
    "elastic/_warm/child.py",
    "elastic/_warm/fitness.py",
    "elastic/_warm/ranks.py",
    "elastic/_warm/template.py",
)

# Headers by which a pure machine could use clocks, random numbers, threads or the system.
IMPURE_HEADERS = re.compile(
    r"<(thread|mutex|shared_mutex|condition_variable|atomic|future|iostream|fstream|filesystem"
    r"|random|ctime|unistd\.h|fcntl\.h|pthread\.h|sys/.*|netinet/.*|poll\.h|time\.h)>"
)

# `core` may name these system headers: constants and pure functions only.
BANNED_IN_LIBRARY = {
    r"\bstd::cout\b|\bstd::cerr\b|\bprintf\(": "the library does not print",
    r"\bsystem_clock\b": "decisions use monotonic time (elastic/time.h)",
    r"\bsignal\(SIG": "the library installs no signal handler",
    r"\bsetenv\(|\bputenv\(": "the library does not change the embedding program's environment",
    r"\bexit\(": "the library does not end the embedding program",
}


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    paths = [ROOT / name for name in listed if name]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def cpp_sources(layer: str) -> list[Path]:
    return [p for p in tracked(*CPP_SUFFIXES) if relative(p).startswith(f"csrc/{layer}/")]


def complaints(lines: Iterator[str]) -> None:
    found = list(lines)
    assert not found, "\n" + "\n".join(found)


def code_of(line: str) -> str:
    """The line without a // comment; exact enough for the patterns below."""
    return line.split("//", 1)[0]


def test_folders_include_only_what_the_table_allows() -> None:
    table = parts.load()

    def look() -> Iterator[str]:
        for path in parts.sources():
            name = parts.name_of(path)
            is_public = name.startswith("elastic/") or path.name == "__init__.py"
            if not is_public and table.folder_of(name) is None and name not in table.part_of:
                yield f"{relative(path)}: its folder is not in tests/data/includes.txt"
        for arrow in parts.arrows():
            folder = table.folder_of(arrow.source)
            if folder is not None and not table.allows(folder, arrow.target):
                yield f"{arrow}: {folder} may not include {arrow.target}"

    complaints(look())


def test_folders_of_the_table_exist_and_have_no_cycle() -> None:
    table = parts.load()
    names = {parts.name_of(path) for path in parts.sources()}

    def look() -> Iterator[str]:
        for known in [*table.part_of, *table.meet, *table.decide]:
            prefix = known.rstrip("*") if known.endswith("*") else f"{known}/"
            if known not in names and not any(name.startswith(prefix) for name in names):
                yield f"tests/data/includes.txt: there is no file or folder {known}"

    complaints(look())
    # Packages of Python may depend on each other, their modules may not.
    below = {
        folder: {one for one in allowed if one in table.folders}
        for folder, allowed in table.folders.items()
        if not folder.startswith("python/")
    }
    while free := [folder for folder, rest in below.items() if not rest & below.keys()]:
        for folder in free:
            del below[folder]
    assert not below, f"in a cycle, or dependent on one: {sorted(below)}"


def test_the_launcher_knows_extensions_only_where_they_are_attached() -> None:
    strays = parts.strays(parts.load())
    complaints(
        f"{arrow}: {arrow.source} may not include {arrow.target}: use a file of [meet]"
        for arrow in strays
    )


def test_the_page_shows_the_parts_as_they_are() -> None:
    assert parts.is_current(parts.PAGE.read_text(), parts.load()), "run python tools/parts.py"


def test_core_is_pure() -> None:
    def look() -> Iterator[str]:
        for path in cpp_sources("core"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.match(r"#include ", line) and IMPURE_HEADERS.search(line):
                    yield f"{relative(path)}:{number}: core may not use {line[9:]}"

    complaints(look())


def test_public_headers_use_the_standard_library_only() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".h"):
            if not relative(path).startswith("csrc/include/elastic/"):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                include = re.match(r'#include ["<](.+)[">]', line)
                if not include:
                    continue
                name = include[1]
                if path.name.startswith("worker") and name in ("stddef.h", "stdint.h"):
                    continue  # a header of C
                if not name.startswith("elastic/") and ("/" in name or name.endswith(".h")):
                    yield f"{relative(path)}:{number}: a public header includes {name}"

    complaints(look())


def test_library_does_not_control_the_embedding_program() -> None:
    def look() -> Iterator[str]:
        for layer in ("core", "os", "host"):
            for path in cpp_sources(layer):
                if path.name == "check.h":
                    continue  # only a broken invariant of our own aborts
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    for pattern, why in BANNED_IN_LIBRARY.items():
                        if re.search(pattern, code_of(line)) and "_exit(" not in line:
                            yield f"{relative(path)}:{number}: {why}"

    complaints(look())


def test_files_are_within_size_and_width_limits() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".h", ".cc", ".py", ".pyi"):
            if path.suffix == ".pyi":
                continue  # generated
            lines = path.read_text().splitlines()
            limit = SOURCE_LINES_MAX
            if relative(path).startswith("csrc/include/"):
                limit = PUBLIC_HEADER_LINES_MAX
            if len(lines) > limit:
                yield f"{relative(path)}: {len(lines)} lines, more than {limit}"
            for number, line in enumerate(lines, 1):
                if len(line) > COLUMNS_MAX:
                    yield f"{relative(path)}:{number}: longer than {COLUMNS_MAX} columns"

    complaints(look())


def test_no_merge_was_left_undone() -> None:
    marker = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)

    def look() -> Iterator[str]:
        for path in tracked(".h", ".cc", ".py", ".md", ".txt", ".toml", ".sh"):
            text = path.read_text(errors="replace")
            for found in marker.finditer(text):
                number = text.count("\n", 0, found.start()) + 1
                yield f"{relative(path)}:{number}: a mark of a conflict"

    complaints(look())


def test_headers_have_a_guard_and_a_description() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".h"):
            text = path.read_text()
            if not text.startswith("#pragma once\n"):
                yield f"{relative(path)}: does not begin with #pragma once"
            elif relative(path).startswith("csrc/") and "\n// " not in text:
                yield f"{relative(path)}: has no comment that describes it"

    complaints(look())


def test_no_unfinished_work() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")

    def look() -> Iterator[str]:
        for path in tracked(".h", ".cc", ".py", ".sh", ".md", ".toml", ".txt"):
            if path == Path(__file__):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if marks.search(line):
                    yield f"{relative(path)}:{number}: {line.strip()}"

    complaints(look())


WAITING = "tests/python/support/waiting.py"  # the only file of the Python tests that sleeps
TIDY = "tests/tidy.py"
# Tests about a thread that does not run, or a random moment: a count that only falls.
STALLS_MAX = 7


PAUSE = re.compile(
    r"(\w+\.)?sleep\((?!0\))|from (time|asyncio) import .*\bsleep\b|os\.sched_yield\("
    r"|select\.select\(\[\], \[\], \[\]|threading\.Event\(\)\.wait$"
    r"|signal\.(sigtimedwait|setitimer)\("
)
CLOCK = re.compile(r"\btime\.(monotonic|perf_counter)(_ns)?\(\)")
TIMEOUT_MAX = 0.01  # of a wait that a test expects to expire


def is_upper_bound(node: ast.Compare) -> bool:
    """Whether it says that something took less than a time."""
    sides = [node.left, *node.comparators]
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        less = {ast.Lt: left, ast.LtE: left, ast.Gt: right, ast.GtE: right}.get(type(operator))
        if less is not None and CLOCK.search(ast.unparse(less)):
            return True
    return False


def expires(node: ast.Compare) -> bool:
    """Whether it says that a wait with a timeout, which is longer than a moment, has no result."""
    if not (isinstance(node.left, ast.Call) and isinstance(node.ops[0], ast.Is)):
        return False
    given = [one.value for one in node.left.keywords if one.arg == "timeout"]
    return any(isinstance(one, ast.Constant) and one.value > TIMEOUT_MAX for one in given)


def pauses(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of what waits for a time instead of an event. Programs in strings are none."""
    is_test = re.match(r"tests/python/(?!support/)", relative(path))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call | ast.ImportFrom | ast.Attribute):
            text = ast.unparse(node)
            if PAUSE.match(text):
                yield node.lineno, f"waits by sleeping: {text}"
            elif text.endswith(".TimeoutExpired") and is_test:
                yield node.lineno, "expects that a wait takes too long"
        elif isinstance(node, ast.Compare) and is_test:
            if is_upper_bound(node):
                yield node.lineno, f"is an upper bound of time: {ast.unparse(node)}"
            if expires(node):
                yield node.lineno, f"expects that a wait takes too long: {ast.unparse(node)}"


def test_tests_wait_for_events_and_do_not_sleep() -> None:
    """In C++ only support/eventually.h sleeps, in Python only support/waiting.py."""
    sleeping = re.compile(
        r"(sleep_for|sleep_until|usleep|nanosleep|::sched_yield|::yield)\("
        r"|promise<void>\(\)\.get_future\(\)|poll\(nullptr, 0"
        r"|wait_for\((?!seconds\(0\)|0s).*future_status::timeout"
        r"|EXPECT_FALSE\(.*next_event\(.*(seconds\([1-9]|\d+m?s\b)"
    )
    stalls = []

    def look() -> Iterator[str]:
        for path in tracked(".cc", ".h", ".py"):
            name = relative(path)
            if not name.startswith("tests/") or "stub" in path.name or name in (WAITING, TIDY):
                continue
            if path.suffix == ".py":
                stalls.extend([name] * path.read_text().count(" stall_for_test("))
                yield from (f"{name}:{number}: {what}" for number, what in pauses(path))
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if sleeping.search(line) and "stub" not in line and "eventually.h" not in name:
                    yield f"{name}:{number}: waits by sleeping"
                if "stall_for_test(" in line and "eventually.h" not in name:
                    stalls.append(name)
        if len(stalls) > STALLS_MAX:
            yield f"stall_for_test() is called {len(stalls)} times: {stalls}"

    complaints(look())


def test_names_of_cpp_tests_are_clauses() -> None:
    """Death.OfTheAgent is a fragment, which says nothing in a list of failures."""
    fragment = re.compile(r"\bTEST(?:_F|_P)?\(\s*\w+,\s*((?:That|Of|Or|As|And)[A-Z]\w*)")

    def look() -> Iterator[str]:
        for path in tracked(".cc", ".h"):
            if not relative(path).startswith("tests/cpp/"):
                continue
            for name in fragment.findall(path.read_text()):
                yield (
                    f"{relative(path)}: {name} is no clause: write what the suite does (IsClosed), "
                    "or a subject with a verb (AClosedSessionIsResumed)"
                )

    complaints(look())


QUARANTINED_MAX = 5


def test_quarantine_is_short_and_has_a_reason() -> None:
    def marks() -> Iterator[tuple[str, dict[str, str]]]:
        for path in tracked(".py"):
            nodes = ast.walk(ast.parse(path.read_text())) if "tests/python" in str(path) else ()
            for node in nodes:
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) == "pytest.mark.quarantine"
                ):
                    given = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
                    yield f"{relative(path)}:{node.lineno}", given

    def look() -> Iterator[str]:
        for where, given in marks():
            if not given.get("why"):
                yield f"{where}: why is this test in quarantine?"
            until = date.fromisoformat(given.get("until", "1970-01-01"))
            if until < date.today():
                yield f"{where}: the quarantine ended on {until}: mend the test or delete it"
        if (found := len(list(marks()))) > QUARANTINED_MAX:
            yield f"{found} tests are in quarantine, more than {QUARANTINED_MAX}"

    complaints(look())


def test_no_test_imports_another_test() -> None:
    """Code of several tests belongs to tests/python/support, and each test to one folder."""

    def look() -> Iterator[str]:
        for path in tracked(".py"):
            name = relative(path)
            if not name.startswith("tests/python/"):
                continue
            if re.search(r"^\s*(from|import) test_", path.read_text(), re.MULTILINE):
                yield f"{name}: imports a test; move what both need to tests/python/support"
            if path.name.startswith("test_") and len(path.relative_to(ROOT).parts) != 4:
                yield f"{name}: belongs to a folder of tests/python"

    complaints(look())


def test_python_handlers_name_the_error() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".py"):
            name = relative(path)
            # What runs before a script must never fail it.
            if not name.startswith("python/") or name.startswith("python/elastic/_site/"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.ExceptHandler):
                    continue
                named = getattr(node.type, "id", "")
                broad = node.type is None or named in ("Exception", "BaseException")
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                if broad and not raises:
                    yield f"{relative(path)}:{node.lineno}: catches every error; name one"

    complaints(look())


TORCH_ADAPTERS = (
    "python/elastic/torch/",
    "python/elastic/torch_compat/rendezvous/etcd_store.py",
    "python/elastic/torch_compat/torchrun_handler.py",
)


def test_only_the_torch_adapters_import_torch() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".py"):
            name = relative(path)
            if not name.startswith("python/") or name.startswith(TORCH_ADAPTERS):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                if any(item.split(".")[0] == "torch" for item in names):
                    yield f"{name}:{node.lineno}: imports torch"

    complaints(look())


def python_sources() -> list[Path]:
    return [path for path in tracked(".py") if relative(path).startswith("python/elastic/")]


def test_python_modules_have_no_import_cycle() -> None:
    folder = ROOT / "python"
    modules = {}
    for path in python_sources():
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        if not name.endswith("__init__"):
            modules[name] = path

    def imported(name: str) -> set[str]:
        """Modules that a module imports, including lazy imports and imports for types only."""
        found = set()
        for _, target in parts.own_imports(modules[name]):
            for candidate in (target, target.rpartition(".")[0]):
                if candidate in modules:
                    found.add(candidate)
        return found - {name}

    before = {name: imported(name) for name in modules}
    while free := [name for name, rest in before.items() if not rest & before.keys()]:
        for name in free:
            del before[name]
    assert not before, f"in an import cycle, or dependent on one: {sorted(before)}"


def test_environment_is_read_in_one_place_only() -> None:
    def look() -> Iterator[str]:
        for path in tracked(".py"):
            name = relative(path)
            if not name.startswith("python/") or name.endswith(ENVIRONMENT_READERS):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(r"os\.(environ|getenv)", line.split("#", 1)[0]):
                    yield f"{name}:{number}: reads the environment; take a mapping instead"

    complaints(look())


# They go on without what a Python lacks that was built on an old system, as those of conda and uv;
# tests/python/process/test_old_python.py runs them so.
WITHOUT_NEW_CALLS = ("_unnamed_file.py", "subprocess_context.py", "file_based_local_timer.py")


def test_calls_that_an_old_python_lacks_are_in_few_places() -> None:
    def look() -> Iterator[str]:
        for path in python_sources():
            if path.name in WITHOUT_NEW_CALLS:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(r"\.(memfd_create|pidfd_open|pidfd_send_signal)\b", line):
                    yield f"{relative(path)}:{number}: not every Python has this call"

    complaints(look())


def test_every_source_is_built() -> None:
    """A file that no CMakeLists.txt lists is dead."""
    listed = "\n".join(p.read_text() for p in tracked() if p.name == "CMakeLists.txt")

    def look() -> Iterator[str]:
        for path in tracked(".cc"):
            name = relative(path)
            if name.startswith("tests/install/"):
                continue
            if path.name not in listed:
                yield f"{name}: no CMakeLists.txt builds it"

    complaints(look())


# Of older commits some subjects are longer.
FIRST_TIDY_COMMIT = "d3c08cef"
SUBJECT_MAX = 72


def test_subjects_of_commits_are_short_and_say_what_changes() -> None:
    listed = subprocess.run(
        ["git", "log", "--format=%h %s", f"{FIRST_TIDY_COMMIT}..HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip(f"this clone has no commit {FIRST_TIDY_COMMIT}: it is shallow")

    def look() -> Iterator[str]:
        for line in listed.stdout.splitlines():
            commit, _, subject = line.partition(" ")
            if len(subject) > SUBJECT_MAX:
                yield f"{commit}: the subject has {len(subject)} characters: {subject}"
            if subject.startswith("Merge branch '"):
                yield f"{commit}: say what the branch changes: {subject}"

    complaints(look())
