"""Every option of torchrun, option by option; the dry run; and the older launcher of torch."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from elastic import ConfigError, run
from elastic import launch as legacy
from elastic.cli import help, options

from support.launching import DEADLINE_S, clean_environment, launch, launched, run_program


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {action.dest: action for action in parser._actions if action.dest != "help"}


# torch 2.15 has these options in addition to 2.13.
NEWER = {
    "log_line_prefix_template": ["--log-line-prefix-template", "--log_line_prefix_template"],
    "print_completion": ["--print-completion", "--print_completion"],
}


@pytest.fixture(scope="module")
def torchs() -> dict[str, argparse.Action]:
    return actions(pytest.importorskip("torch.distributed.run").get_args_parser())


def test_every_option_of_torchrun_has_its_names_and_default(
    torchs: dict[str, argparse.Action],
) -> None:
    ours = actions(run.get_args_parser())
    for name, theirs in torchs.items():
        mine = ours[name]
        assert set(theirs.option_strings) <= set(mine.option_strings), name
        assert mine.default == theirs.default, name
        assert mine.nargs == theirs.nargs or theirs.nargs is None, name
        if theirs.choices:
            assert set(theirs.choices) <= set(mine.choices or ()), name
    for name, flags in NEWER.items():
        assert set(flags) <= set(ours[name].option_strings), name
    assert ours["log_line_prefix_template"].default == ""


def sample(action: argparse.Action) -> str:
    """A value that torch's option accepts."""
    if action.choices:
        return str(next(iter(action.choices)))
    return "2" if action.type in (int, float) else "a,,b"


def test_every_value_has_torchs_type(torchs: dict[str, argparse.Action]) -> None:
    ours, theirs = run.get_args_parser(), sys.modules["torch.distributed.run"].get_args_parser()
    for name, action in torchs.items():
        if not action.option_strings or name == "print_completion":
            continue
        flag = max(action.option_strings, key=len)
        words = [flag] if action.nargs == 0 else [flag, sample(action)]
        mine, other = (getattr(parser.parse_args([*words, "x"]), name) for parser in (ours, theirs))
        assert mine == other, name


def test_every_variable_of_torchrun_is_read(
    torchs: dict[str, argparse.Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, Any] = {}
    for name, action in torchs.items():
        has_variable = type(action).__name__ in ("env", "check_env")
        if has_variable:
            value = "1" if action.nargs == 0 else sample(action)
            monkeypatch.setenv(f"PET_{name.upper()}", value)
            wanted[name] = value
    assert len(wanted) > 20
    theirs = sys.modules["torch.distributed.run"].get_args_parser().parse_args(["x"])
    ours = run.get_args_parser().parse_args(["x"])
    assert {name: getattr(ours, name) for name in wanted} == {
        name: getattr(theirs, name) for name in wanted
    }


def test_the_help_names_every_option_in_a_group() -> None:
    text = help.full_text()
    for option in options.OPTIONS:
        assert f"--{option.name}" in text
        assert option.help, option.name
    for title, _ in options.GROUPS:
        assert f"\n{title}:" in text
    assert max(map(len, text.splitlines())) <= 100


def test_completion_knows_the_options() -> None:
    pytest.importorskip("shtab")
    for shell in options.shells():
        done = launch("--print-completion", shell, check=True)
        assert "nproc" in done.stdout and "elastic-launch" in done.stdout
        assert "__main__" not in done.stdout
    assert launch("--print-completion=nushell").returncode == 2


def test_a_dry_run_prints_what_would_be_started() -> None:
    done = launch(
        "--dry-run", "--nproc-per-node=2", "--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-id=j",
        "--rdzv-endpoint=[2001:db8::1]", "--max-restarts=3", "--tee=0:3", "--rdzv-conf=settle=0.5",
        "--forward-signals=USR1", "--no-python", "/bin/echo", "${local_rank}",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(":", 1) for line in reversed(done.stdout.splitlines()))
    facts = {label: value.strip() for label, value in lines.items()}
    assert facts["workers"] == "2 on this node, role default"
    assert (facts["command of 0"], facts["command of 1"]) == ("/bin/echo 0", "/bin/echo 1")
    assert facts["nodes"] == "1 to 3"
    assert facts["rendezvous"] == "c10d at [2001:db8::1]:29400"
    assert (facts["run id"], facts["settle"], facts["restarts"]) == ("j", "500 ms", "3")
    assert facts["forwarded signals"] == "SIGUSR1"
    assert facts["output of 0"] == "stdout tee, stderr tee"
    assert "output of 1" not in facts


@pytest.mark.smoke
def test_a_dry_run_starts_nothing_and_checks_everything(tmp_path: Path) -> None:
    done = launch("--dry-run", "--no-python", "/bin/sh", "-c", f"echo > {tmp_path}/started")
    assert done.returncode == 0 and not (tmp_path / "started").exists()
    assert done.stdout.count("OMP_NUM_THREADS") == 1
    assert launch("--dry-run", str(tmp_path / "missing.py")).returncode == 2
    args = run.parse_args(["--dry-run", "--no-python", "/bin/sh", "-c", f"echo > {tmp_path}/x"])
    run.run(args)
    assert not (tmp_path / "x").exists()


def test_an_unusable_file_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for option, text in (
        (f"--log-dir={script}", f"--log-dir: cannot make {script}: it is a file\n"),
        ("--result-json=/nonexistent/x", "expected a file in a directory that exists\n"),
        ("--event-log=/nonexistent/x", "cannot write the event log"),
    ):
        done = launch(option, str(script))
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1 and text in done.stderr


def test_a_forwarded_signal_reaches_the_workers_and_not_their_children() -> None:
    # The child would report the signal too, if it reached it.
    child = "trap 'echo child' USR1; echo up; while :; do sleep 0.05; done"
    # The handler is there before the child prints; the child, another program, does not keep it.
    script = f"trap 'echo got $RANK; kill $!; exit 0' USR1; sh -c \"{child}\" & wait"
    words = ["--nproc-per-node=2", "--forward-signals=USR1", "--no-python", "/bin/sh", "-c",
             f"exec 2>/dev/null; {script}"]  # fmt: skip
    with launched(*words) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        process.send_signal(signal.SIGUSR1)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, sorted(stdout.splitlines())) == (0, ["got 0", "got 1"]), stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"HIP_VISIBLE_DEVICES": "4, 5", "CUDA_VISIBLE_DEVICES": "0,1"}, "0 5 5"),
        ({"CUDA_VISIBLE_DEVICES": "7, 3"}, "0 3 none"),
        ({}, "0 1 none"),
    ],
)
def test_a_virtual_local_rank_has_one_device(given: dict[str, str], expected: str) -> None:
    show = "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES ${HIP_VISIBLE_DEVICES:-none}"
    bare = clean_environment()
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        bare.pop(name, None)
    done = launch(
        "--nproc-per-node=2", "--virtual-local-rank", "--no-python", "/bin/sh", "-c",
        f"[ $RANK = 0 ] || {show}", environ=bare | given,
    )  # fmt: skip
    assert done.stdout == f"{expected}\n", done.stderr


def test_the_older_launcher_passes_the_local_rank_as_an_argument(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys; sys.stdout.write(f\"{os.environ['RANK']} {sys.argv[1:]}\\n\")"
    )
    words = ["elastic.launch", "--nproc_per_node=2", str(script), "--lr", "1"]
    done = run_program([sys.executable, "-m", *words])
    assert sorted(done.stdout.splitlines()) == [
        "0 ['--local-rank=0', '--lr', '1']",
        "1 ['--local-rank=1', '--lr', '1']",
    ], done.stderr


def test_the_older_launcher_can_be_called_by_programs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = tmp_path / "train.py"
    script.write_text(f"import sys; open({str(out)!r}, 'w').write(' '.join(sys.argv[1:]))")
    legacy.main([str(script), "x"])
    assert out.read_text() == "--local-rank=0 x"
    legacy.main(["--use-env", str(script), "x"])
    assert out.read_text() == "x"
    with pytest.raises(ConfigError, match="--no-python needs --use-env"):
        legacy.main(["--no-python", "/bin/true"])
