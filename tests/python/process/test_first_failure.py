"""The report names the worker that failed first, in the whole job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.first_failure import trials
from support.launching import DEADLINE_S, clean_environment, free_endpoint, launch, shell_job


def test_the_first_failing_rank_is_reported_even_if_it_dies_last() -> None:
    # The guardian of a busy machine sees an exit later than it was.
    found = trials(5, least_ms=1000, most_ms=2000)
    assert all(trial.is_right() for trial in found), found


def result_of(tmp_path: Path, *words: str) -> dict[str, object]:
    path = tmp_path / "result.json"
    launch("--standalone", f"--result-json={path}", *words)
    data: dict[str, object] = json.loads(path.read_text())
    return data


def test_an_error_about_a_lost_peer_is_no_first_failure(tmp_path: Path) -> None:
    """It may be printed before the peer's exit is known: a dying process closes its sockets."""
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, os, pathlib, signal, threading\n"
        "raised = pathlib.Path(__file__).with_name('raised')\n"
        "if os.environ['RANK'] == '0':\n"
        "    while not raised.exists():\n"
        "        threading.Event().wait(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "atexit.register(signal.pause)\n"
        "atexit.register(raised.touch)  # is called first, after the traceback was printed\n"
        "raise RuntimeError('[pair.cc:537] Read error: Connection reset by peer')\n"
    )
    result = tmp_path / "result.json"
    launch("--nproc-per-node=2", "--shutdown-timeout=5", f"--result-json={result}", str(script))
    first = json.loads(result.read_text())["first_failure"]
    assert (first["rank"], first["how"]) == (0, "killed by signal 9 (SIGKILL)")


@pytest.mark.smoke
def test_the_result_is_written_as_json(tmp_path: Path) -> None:
    done = result_of(tmp_path, "--no-python", "true")
    assert (done["state"], done["exit_code"], done["first_failure"]) == ("SUCCEEDED", 0, None)
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('bad')\n")
    failed = result_of(tmp_path, "--nproc-per-node=1", str(script))
    first = failed["first_failure"]
    assert isinstance(first, dict)
    assert (failed["state"], failed["exit_code"], failed["class"]) == ("FAILED", 1, "user worker")
    assert (first["rank"], first["cause"], first["error"]) == (0, "exception", "ValueError: bad")
    assert first["output"][-1] == "ValueError: bad"
    assert list(tmp_path.glob("result.json.*")) == []


def test_an_invalid_value_is_a_result_too(tmp_path: Path) -> None:
    done = result_of(tmp_path, "--log-dir=/dev/zero", "--no-python", "true")
    assert (done["state"], done["exit_code"], done["class"]) == ("FAILED", 2, "user input")
    assert "cannot make /dev/zero" in str(done["message"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nope", "3", "--result-json=FILE", "train.py"], "there is no option --nope"),
        (["-z", "--standalone", "--result_json", "FILE"], "there is no option -z"),
        (["--result-json=other", "--nproc-per-node=2", "-mt3", "--result-j", "FILE"],
         "the following arguments are required: PROGRAM"),
        (["--max-restarts"], "--max-restarts needs a value"),
        (["--nope", "--", "train.py", "--result-json=other"], "there is no option --nope"),
    ],
)  # fmt: skip
def test_a_command_line_that_cannot_be_parsed_is_a_result_too(
    words: list[str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    given = [word.replace("FILE", str(path)) for word in words]
    is_given = given != words
    variables = {} if is_given else {"PET_RESULT_JSON": str(path)}
    launched = launch(*given, environ=clean_environment(**variables), cwd=tmp_path)
    done = json.loads(path.read_text())
    assert (launched.returncode, done["exit_code"], done["class"]) == (2, 2, "user input")
    assert message in done["message"]
    assert not (tmp_path / "other").exists(), "the last value, and no argument of PROGRAM, counts"


def test_classes_of_failures(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/interpreter\n")
    program.chmod(0o755)
    assert result_of(tmp_path, "--no-python", str(program))["class"] == "user input"
    killed = result_of(tmp_path, "--no-python", "sh", "-c", "kill -9 $$")
    first = killed["first_failure"]
    assert isinstance(first, dict)
    assert (first["class"], first["cause"], first["signal"]) == ("platform", "signal", "SIGKILL")
    assert "something other than the kernel's out-of-memory killer sent SIGKILL" in str(
        first["hint"]
    )


def test_codes_that_no_restart_helps_end_the_job_on_all_nodes() -> None:
    # Code 5 is not among them.
    script = """
        echo round
        test $RANK = 1 && exit $((TORCHELASTIC_RESTART_COUNT * 60 + 5))
        exec sleep 1000
    """
    words = ("--max-restarts=2", "--restart-backoff=0", "--failure-grace=5")
    with shell_job(free_endpoint(), "2", script, "--no-restart-codes=4,64-78", *words) as job:
        job.start()
        job.start()
        done = job.finish_with(65, 65)
    assert max(node.stdout.count("round") for node in done) == 2
    assert any("that code ends the job (--no-restart-codes)" in node.stderr for node in done)


def test_the_same_failure_in_every_round_is_reported_as_such() -> None:
    done = launch("--standalone", "--max-restarts=2", "--restart-backoff=0", "--no-python",
                  "sh", "-c", "echo step $$ failed >&2; exit 5")  # fmt: skip
    assert done.returncode == 5
    assert "the same failure in 3 rounds in a row" in done.stderr
    assert "2 of 2 restarts used" in done.stderr


def test_an_error_file_that_is_half_written_does_not_hide_the_report(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib\n"
        "path = pathlib.Path(os.environ['TORCHELASTIC_ERROR_FILE'])\n"
        'path.write_text(\'{"message": {"message": "KeyError: 7", "extra\')\n'
        "os._exit(4)\n"
    )
    done = launch("--standalone", str(script))
    assert done.returncode == 4
    assert "failed: rank 0" in done.stderr
    assert "    error   KeyError: 7" in done.stderr


def test_workers_that_ignore_sigterm_are_replaced_after_the_failure_grace(tmp_path: Path) -> None:
    # A Python handler of SIGTERM does not run inside a collective. Rank 1 fails when rank 0 ignores
    # the signal.
    script = (
        f'trap "" TERM; echo "$TORCHELASTIC_RESTART_COUNT $(date +%s.%N)" >> {tmp_path}/$RANK; '
        "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; "
        f"test $RANK = 1 && {{ until test -s {tmp_path}/0; do sleep 0.02; done; "
        f"date +%s.%N > {tmp_path}/failed; exit 3; }}; "
        "while :; do sleep 1; done"
    )
    # launch() ends long before the workers would be killed after the time for a stop.
    words = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--failure-grace=1"]
    words += [f"--shutdown-timeout={2 * DEADLINE_S}", "--no-python"]
    launch(*words, "bash", "-c", script, check=True)
    failed = float((tmp_path / "failed").read_text())
    again = float((tmp_path / "0").read_text().split()[-1])
    assert again - failed >= 1.0
