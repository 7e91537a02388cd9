"""``elastic.run`` as programs written for torch's module of that name use it."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elastic import ConfigError, run
from elastic.cli import resolve
from elastic.cli.config import RendezvousConfig
from elastic.cli.options import OPTIONS
from elastic.errors import ElasticError
from elastic.launcher import elastic_launch
from elastic.launcher.api import LaunchConfig
from elastic.multiprocessing import ChildFailedError
from elastic.rendezvous.keys import Keys
from elastic.torch_compat.rendezvous.registry import rendezvous_handler_registry

from support.launching import free_port


def test_a_namespace_as_accelerate_builds_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))")
    out = str(tmp_path / "out")
    defaults = ["--training_script", str(script), "--training_script_args", out]
    args, _ = run.get_args_parser().parse_known_args(defaults)
    theirs = argparse.Namespace(
        nproc_per_node="1", nnodes="1", master_port=str(free_port()), training_script=str(script),
        training_script_args=[out, "--lr", "1"], rdzv_backend="static", monitor_interval=0.1,
        max_restarts=0, rdzv_conf="", tee="0", log_dir=None, role="default", module=False,
    )  # fmt: skip
    for name, value in vars(theirs).items():
        assert name in vars(args)
        setattr(args, name, value)
    run.run(args)
    assert Path(out).read_text() == "--lr 1"


def test_failures_are_raised_with_the_rank_and_the_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('bad data')")
    with pytest.raises(ChildFailedError, match="ValueError: bad data") as caught:
        run.main(["--nproc-per-node=1", str(script)])
    assert caught.value.name == str(script)
    assert caught.value.get_first_failure()[1].exitcode == 1
    assert "bad data" in capfd.readouterr().err


def test_each_warning_is_given_once_in_a_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    host = ".".join(["b" * 63] * 5)  # the resolver refuses so long a name itself
    words = [f"--master-addr={host}", "--rdzv-conf=join_timeout=0.1"]
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot resolve 'bbb"):
            run.run(run.parse_args([*words, str(script)]))
        run.run(run.parse_args(["--node-rank=12345", str(script)]))
    assert capfd.readouterr().err.count("trying again") == 1
    assert [text for text in caplog.messages if "node-rank" in text] == [
        "--node-rank is 12345: ignored, since the only node has rank 0"
    ]


def test_run_path_runs_a_script_whatever_module_says(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; assert sys.argv[1:] == ['a'] and __name__ == '__main__'")
    run.main(["--run-path", "--module", str(script), "a"])


def test_what_cannot_be_run_is_one_error() -> None:
    with pytest.raises(ConfigError, match="--nnodes is '0'"):
        run.main(["--nnodes=0", "/bin/true"])
    with pytest.raises(ConfigError, match="there is no logs plug-in"):
        run.main(["--logs-specs=mine", "/bin/true"])
    with pytest.raises(SystemExit) as caught:
        run.main(["--max-restarts=many", "/bin/true"])
    assert caught.value.code == 2


def test_the_config_of_a_namespace_can_be_launched(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; open(os.environ['RANK'], 'w')")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        config, entrypoint, args = run.config_from_args(
            run.parse_args(["--nproc-per-node=2", "--log-dir=logs", "script.py"])
        )
        assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (1, 1, 2)
        assert elastic_launch(config, entrypoint)(*args) == {0: None, 1: None}
        assert sorted(os.listdir(tmp_path)) == ["0", "1", "logs", "script.py"]
    finally:
        os.chdir(before)


def test_arguments_of_the_script_may_look_like_several_options() -> None:
    words = ["--max-restarts=1", "train.py", "--fail", "--log", "--rdzv"]
    parsed = run.parse_args(words)
    assert (parsed.max_restarts, parsed.training_script) == (1, "train.py")
    assert parsed.training_script_args == words[2:]
    assert run.parse_args(["--nproc", "2", "train.py"]).nproc_per_node == "2"
    with pytest.raises(SystemExit):
        run.parse_args(["--fail", "train.py"])


def test_node_numbers_are_read_as_a_range() -> None:
    assert run.parse_min_max_nnodes("4") == (4, 4)
    assert run.parse_min_max_nnodes("1:4") == (1, 4)
    with pytest.raises(RuntimeError, match="expected N or MIN:MAX"):
        run.parse_min_max_nnodes("1:2:3")
    with pytest.raises(ConfigError):
        run.parse_min_max_nnodes("4:1")


def test_the_config_of_a_namespace_keeps_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    words = ["--numa-binding=node", "--master-port=29777", "--shutdown-timeout=0.5"]
    config, _, _ = run.config_from_args(
        run.parse_args([*words, "--nnodes=auto", "--no-python", "/bin/true"])
    )
    assert config.numa_options.affinity_mode == "node"
    assert config.shutdown_timeout == 0.5
    assert (config.min_nodes, config.max_nodes) == (1, 1)
    assert int(os.environ["OMP_NUM_THREADS"]) >= 1
    program = ["-c", 'test "$MASTER_ADDR:$MASTER_PORT" = 127.0.0.1:29777']
    config.numa_options = None
    config.rdzv_endpoint = config.rdzv_endpoint.replace("29777", str(port := free_port()))
    program[1] = program[1].replace("29777", str(port))
    assert elastic_launch(config, "/bin/sh")(*program) == {0: None}
    several, _, _ = run.config_from_args(
        run.parse_args(["--nnodes=2", "--node-rank=1", "--master-addr=a", "--no-python", "true"])
    )
    assert (several.rdzv_backend, several.rdzv_endpoint) == ("static", "a:29500")
    assert several.rdzv_configs["rank"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")


def test_the_config_of_a_namespace_has_elastics_own_options(
    tmp_path: Path,
) -> None:
    words = ["--hang-timeout=60", "--hang-action=restart", "--failure-grace=0.5", "--redirects=3"]
    words += ["--straggler-timeout=9", "--no-restart-codes=3,5", "--log-max-bytes=5000"]
    words += [f"--log-dir={tmp_path}", f"--event-log={tmp_path}/events", "--no-python", "/bin/sh"]
    config, entrypoint, _ = run.config_from_args(run.parse_args(words))
    wanted = {
        "hang_timeout": 60.0,
        "hang_action": "restart",
        "failure_grace": 0.5,
        "straggler_timeout": 9.0,
        "no_restart_codes": (3, 5),
        "max_bytes": 5000,
        "event_log": f"{tmp_path}/events",
    }
    assert config.native == wanted
    config.max_restarts = 3
    with pytest.raises(ChildFailedError):
        elastic_launch(config, entrypoint)("-c", "seq 2000; exit 5")
    events = (tmp_path / "events").read_text()
    assert '"round"' in events
    assert len(list(tmp_path.glob("*/attempt_0/0/stdout.log.1"))) == 1
    assert not list(tmp_path.glob("*/attempt_1"))
    with pytest.warns(UserWarning, match="failure_grace, .* have no effect with start_method"):
        forked = replace(config, start_method="fork", native=wanted)
        elastic_launch(forked, os.getpid)()


def test_options_that_a_config_cannot_have_are_named(caplog: pytest.LogCaptureFixture) -> None:
    words = ["--drain=5", "--on-node-loss=fail", "--no-python", "/bin/true"]
    run.config_from_args(run.parse_args(words))
    assert "--drain, --on-node-loss cannot be passed in a LaunchConfig" in caplog.text
    with pytest.raises(ConfigError, match="cannot be passed"):
        run.config_from_args(run.parse_args(["--strict", *words]))


def test_every_option_reaches_a_config_or_is_named() -> None:
    """A new option belongs in the table of the config, of elastic's own fields, or of the rest."""
    natives = {one.name for one in OPTIONS if one.native}
    in_fields = {
        *("nproc-per-node", "module", "no-python", "run-path", "warm", "preload", "role"),
        *("numa-binding", "virtual-local-rank", "start-method", "standalone", "nnodes"),
        *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port"),
        *("node-rank", "token-file", "local-addr", "iface", "subnet", "max-restarts"),
        *("shutdown-timeout", "signals-to-handle", "monitor-interval", "log-dir", "redirects"),
        *("tee", "local-ranks-filter", "event-log-handler", "log-line-prefix-template"),
        *("logs-specs", "duplicate-stdout-filters", "duplicate-stderr-filters", "strict"),
        "inplace-grace",
    }
    named = {*run._ONLY_COMMAND}
    others = {"event-log", "metrics-port", "no-stderr-capture", "worker-port-range"}
    others |= {"inplace-prepare", "on-membership-change", "log-max-bytes", "log-max-files"}
    others |= {"merge-lines", "auto-progress", "no-auto-progress"}
    assert {one.name for one in OPTIONS} == natives | in_fields | named | others


def test_a_job_runs_in_another_thread_and_leaves_the_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    level = logging.getLogger().level
    errors: list[BaseException] = []

    def call() -> None:
        try:
            run.main(["--no-python", "/bin/true"])
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert errors == []
    assert "does not run in the main thread" in caplog.text
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        run.main(["--no-python", "/bin/true"])
        assert (root.level, root.handlers) == (level, [])
    finally:
        root.handlers = handlers


def test_a_variable_of_a_switch_is_read_as_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", "true")
    with pytest.raises(ConfigError, match="PET_STANDALONE is 'true': expected 0 or 1"):
        run.get_args_parser()


def test_small_differences_of_the_launcher_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "12.5")
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1)
    assert config.shutdown_timeout == 12.5
    assert elastic_launch(config, "/bin/true")() == {0: None}  # without an endpoint
    line = ["--rdzv-backend=elastic", "--nnodes=2", "--rdzv-endpoint=a", "--no-python", "true"]
    job = resolve.parse(line, {})
    assert job.rendezvous is not None and job.rendezvous.backend == "c10d"


@pytest.mark.parametrize("made", [lambda _: 5, lambda _: 1 / 0])
def test_a_handler_plug_in_that_fails_is_one_sentence(
    made: Callable[[object], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rendezvous_handler_registry._registry, "broken", made)
    config = RendezvousConfig("broken", 1, 2, Keys({}), store="broken")
    with pytest.raises(ElasticError, match=r"the (rendezvous )?plug-in (for )?'broken'"):
        resolve.rendezvous_handler(config, "id", "")
