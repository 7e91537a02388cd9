"""Compares elastic with what it replaces and with the best that the machine allows.

    python bench/run.py                        all scenes
    python bench/run.py start restart          two scenes
    python bench/run.py --quick --repeats 1    check that every scene runs

The programs are built first (release preset) unless --no-build is given. Prints Markdown; --json
writes the samples and the description of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import machine, report
from harness.figures import Findings, Missing
from harness.programs import BENCH, Programs
from scenes import Plan, all_scenes

ROOT = BENCH.parent


def main(argv: Sequence[str] | None = None) -> int:
    scenes = all_scenes()
    parser = _parser(list(scenes))
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.scenes) - set(scenes):
        parser.error(f"unknown scene: {', '.join(sorted(unknown))} (scenes: {', '.join(scenes)})")
    build = arguments.build_dir or ROOT / "build" / "release"
    if not arguments.no_build and arguments.build_dir is None:
        _build()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile what it imports
    private = not arguments.host_network and machine.enter_private_network()
    facts = machine.facts(build, private, arguments.torchrun)
    programs = Programs(build=build, torchrun=arguments.torchrun)
    plan = Plan(programs=programs, repeats=arguments.repeats, quick=arguments.quick)
    print(report.markdown_of_machine(facts), flush=True)
    found: dict[str, Findings] = {}
    for name in arguments.scenes or scenes:
        try:
            found[name] = scenes[name](plan)
        except Missing as missing:
            found[name] = Findings(skipped={"the scene": str(missing)})
        print(report.markdown_of_scene(name, found[name]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(facts, found), indent=1) + "\n")
    return 0


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="*", metavar="scene", help=", ".join(names))
    parser.add_argument("--repeats", type=int, help="repeats of each case (default: the scene's)")
    parser.add_argument("--quick", action="store_true", help="small amounts and short windows")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    parser.add_argument(
        "--build-dir", type=Path, help="use the programs in this directory; build nothing"
    )
    parser.add_argument(
        "--no-build", action="store_true", help="use existing programs; build nothing"
    )
    parser.add_argument(
        "--torchrun",
        type=Path,
        help="the torchrun of the launcher scenes, from another environment's bin directory",
    )
    parser.add_argument(
        "--host-network",
        action="store_true",
        help="stay in the host's network namespace (torch then queries the host's name server)",
    )
    return parser


def _build() -> None:
    if shutil.which("cmake") is None:
        raise SystemExit("bench: cmake is not installed; give --build-dir or --no-build")
    for command in (
        ["--preset", "release"],
        ["--build", "--preset", "release", "--target", "bench"],
    ):
        subprocess.run(["cmake", *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
