"""Command line and environment give one configuration, or one error message."""

from __future__ import annotations

import logging
import os
import re
import signal
import stat
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic import _C
from elastic._host import devices
from elastic.cli import arguments, command_line, help, options, plan, resolve, values
from elastic.cli.config import JobConfig
from elastic.errors import ConfigError
from elastic.multiprocessing import LogOptions, Std, signals
from elastic.text import substitute
from elastic.utils.logging import get_logger
from hypothesis import given
from hypothesis import strategies as st

from support.paths import ROOT


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("pass\n")
    return str(path)


def configure(argv: list[str], environ: dict[str, str] | None = None) -> JobConfig:
    parsed = resolve.parse(argv, environ or {})
    assert isinstance(parsed, JobConfig)
    return parsed


def program(job: JobConfig) -> tuple[object, ...]:
    return (job.spec.entrypoint, *job.spec.args)


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve.parse(argv, environ or {})
    text = str(caught.value)
    assert "\n" not in text and text
    return text


def test_a_command_line_can_be_read_again(script: str) -> None:
    line = command_line.read(["--node-rank=3", script], {})
    first, second = (resolve.configure(line, {}).notes for _ in range(2))
    assert first == second, "no warning is added to the command line"
    assert sum(level == logging.WARNING for level, _ in first) == 1


def test_defaults_describe_one_worker_that_is_not_restarted(script: str) -> None:
    got = configure([script])
    assert program(got) == (sys.executable, "-u", script)
    assert (got.spec.local_world_size, got.spec.max_restarts, got.spec.role) == (1, 0, "default")
    assert (got.local_addr, got.spec.master_addr) == ("127.0.0.1", "127.0.0.1")
    assert got.spec.master_port is None
    assert got.shutdown_timeout == 30.0
    assert got.signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert got.logs == LogOptions()
    assert got.line_prefix == "[${role_name}${local_rank}]:"


def test_run_id_is_generated_for_every_job(script: str) -> None:
    first, second = configure([script]).spec.run_id, configure([script]).spec.run_id
    assert first != second
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first)


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        *(("NOTICE", "WARNING"), ("notice", "WARNING"), ("info", "INFO"), ("20", "INFO")),
        *(("Fatal", "CRITICAL"), ("35", "ERROR"), ("99", "CRITICAL"), ("0", "NOTSET")),
    ],
)
def test_workers_get_the_log_level_as_a_name_that_every_logger_takes(
    script: str, given: str, passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert configure([script], {"LOGLEVEL": given}).environment["LOGLEVEL"] == passed
    logging.Logger("any").setLevel(passed)
    monkeypatch.setenv("LOGLEVEL", given)
    assert isinstance(get_logger("a name of this test").level, int)


def test_workers_get_the_full_names_of_the_signals(script: str) -> None:
    config = configure([script, "--an-argument"], {"PET_SIGNALS_TO_HANDLE": "term, SIGINT,INT"})
    assert config.environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT"
    with signals.stopping("TERM,int", "signals_to_handle", lambda _: None):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_that_is_not_pythons_leaves_the_result_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = signal.signal

    def install(number: int, handler: object) -> None:
        """As for a handler that a library of C installed before Python started."""
        real(number, handler)  # type: ignore[arg-type] - None is a TypeError

    monkeypatch.setattr(signal, "signal", install)
    with signals.stopping("SIGUSR1", "signals_to_handle", lambda _: None):
        assert callable(signal.getsignal(signal.SIGUSR1))
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (["--nproc-per-node", "3"], "local_world_size", 3),
        (["--nproc_per_node=3"], "local_world_size", 3),
        (["--max-restarts=7"], "max_restarts", 7),
        (["--shutdown-timeout", "0.5"], "shutdown_timeout", 0.5),
        (["--role", "trainer"], "role", "trainer"),
        (["--rdzv-id=job 7"], "run_id", "job 7"),
        (["--master-port", "29500"], "master_port", 29500),
        (["--master-addr", "localhost"], "local_addr", "127.0.0.1"),
        (["--local-addr", "127.0.0.2"], "local_addr", "127.0.0.2"),
        (["--rdzv-endpoint", "127.0.0.3:1234"], "local_addr", "127.0.0.3"),
        (["--rdzv-endpoint", "127.0.0.3:1234"], "master_port", 1234),
        (["--rdzv-backend=c10d", "--rdzv-endpoint", "localhost:1234"], "master_port", None),
        (["--signals-to-handle", "SIGUSR1,int"], "signals", (signal.SIGUSR1, signal.SIGINT)),
        (["--signals-to-handle="], "signals", ()),
        (["--virtual-local-rank"], "virtual_local_rank", True),
        (["--nnodes=1", "--nnodes=1:1", "--node-rank=0", "--standalone"], "local_world_size", 1),
        (["--rdzv-conf", "timeout=900,is_host=true,rank=0"], "local_world_size", 1),
        (["--monitor-interval=5", "--event-log-handler=null"], "local_world_size", 1),
        (["--log-dir=/dev/null"], "logs", LogOptions()),
        (["--log-dir=/dev/null", "-t3", "--merge-lines"], "logs", LogOptions(merge_lines=True)),
    ],
)
def test_an_option_sets_its_field(
    script: str, words: list[str], field: str, expected: object
) -> None:
    job = configure([*words, script])
    assert (vars(job.spec) | job._asdict() | job.native)[field] == expected


# A value of each kind of option, as it is written and as it is read.
VALUES: dict[object, tuple[str, object]] = {
    values.duration: ("=0.25", 0.25),
    values.positive_duration: ("=0.25", 0.25),
    values.exit_codes: ("=3,64-65", (3, 64, 65)),
    values.switch: ("", True),
    values.lines: ("=a b", ("a b",)),
    values.buddies: ("=2", 2),
    values.given_size: ("=2M", 2 << 20),
    values.given_count: ("=2", 2),
    values.text: ("=a b", "a b"),
    values.short: ("=a b", "a b"),
}
NEEDED = {"hang-action": ["--hang-timeout=9"]}  # beside such an option


@pytest.mark.parametrize(
    "option", [one for one in options.OPTIONS if one.native], ids=lambda one: one.name
)
def test_an_option_of_the_native_agent_reaches_its_field(
    script: str, option: options.Option
) -> None:
    last = option.choices[-1] if option.choices else ""
    text, value = VALUES.get(option.read, (f"={last}", last))
    job = configure([f"--{option.name}{text}", *NEEDED.get(option.name, ()), script])
    assert job.native[option.native] == value


@pytest.mark.parametrize(
    "option", [one for one in options.OPTIONS if one.rendezvous], ids=lambda one: one.name
)
def test_an_option_of_the_native_rendezvous_reaches_its_field(
    script: str, option: options.Option
) -> None:
    last = option.choices[-1] if option.choices else ""
    text, value = VALUES.get(option.read, (f"={last}", last))
    nodes = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=host7", "--rdzv-id=job"]
    job = configure([f"--{option.name}{text}", *nodes, script])
    assert job.rendezvous is not None
    assert job.rendezvous.native[option.rendezvous] == value
    assert job.rendezvous.options("job", "") is not None


def test_an_option_that_repeats_has_every_value(script: str) -> None:
    words = ["--node-check=gpu", "--node-check", "/opt/check --quick", script]
    assert configure(words).native["node_checks"] == ("gpu", "/opt/check --quick")
    parsed = arguments.parser({}).parse_args(words)
    assert parsed.node_check == "gpu\n/opt/check --quick"
    assert arguments.parser({}).parse_args([script]).node_check is None


@pytest.mark.parametrize("words", [["-r3", "-t", "1"], ["--redirects=3", "--tee=1"]])
def test_streams_are_selected_for_all_ranks(script: str, words: list[str]) -> None:
    logs = configure([*words, script]).logs
    assert (logs.redirects, logs.tee) == (Std.ALL, Std.OUT)


def test_streams_are_selected_by_rank_beyond_nine(script: str) -> None:
    logs = configure(["--nproc-per-node=12", "-t", "0:3,11:2", script]).logs
    assert [logs.target(rank, Std.OUT) for rank in (0, 5, 11)] == ["tee", "inherit", "inherit"]
    assert [logs.target(rank, Std.ERR) for rank in (0, 5, 11)] == ["tee", "inherit", "tee"]


def test_filtered_ranks_stay_off_the_console(script: str) -> None:
    words = ["--nproc-per-node=4", "--local-ranks-filter=1", "-t2:3", "-r3:3", script]
    logs = configure(words).logs
    targets = [logs.target(rank, Std.OUT) for rank in range(4)]
    assert targets == ["discard", "inherit", "file", "file"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("-u", "{}", "-h", "--role", "x")),
        (["-m"], ("-u", "-m", "{}", "-h", "--role", "x")),
        (["--"], ("-u", "{}", "-h", "--role", "x")),
    ],
)
def test_arguments_after_the_program_belong_to_it(
    script: str, words: list[str], expected: tuple[str, ...]
) -> None:
    got = configure([*words, script, "-h", "--role", "x"])
    assert program(got) == (sys.executable, *(word.format(script) for word in expected))
    assert got.spec.role == "default"


@pytest.mark.parametrize(
    "word", ["--fail", "--stop", "--exit", "--on", "--nproc=x", "-r", "--", "-z"]
)
@pytest.mark.parametrize("words", [[], ["--worker", "3"]])
def test_arguments_of_the_program_are_not_parsed(script: str, word: str, words: list[str]) -> None:
    got = configure(["--nproc-per-node=2", script, word, *words])
    assert program(got) == (sys.executable, "-u", script, word, *words)
    assert got.spec.local_world_size == 2


@pytest.mark.parametrize(
    "words", [["--nproc", "8"], ["--nproc=8"], ["--nproc_per=8"], ["--nproc_per_node", "8"]]
)
def test_an_abbreviation_needs_no_alias(script: str, words: list[str]) -> None:
    assert configure([*words, script]).spec.local_world_size == 8


def test_an_abbreviation_for_torchrun_means_the_same(script: str) -> None:
    assert configure(["--max", "2", "--start", "fork", script]).spec.max_restarts == 2


def test_an_event_log_is_no_handler(script: str) -> None:
    with pytest.raises(ConfigError, match="write --event-log-handler=console for the handler"):
        configure(["--event-log", "console", script])


def test_the_options_of_torchrun_are_those_of_the_installed_one() -> None:
    torch_run = pytest.importorskip("torch.distributed.run")
    flags = {flag for one in torch_run.get_args_parser()._actions for flag in one.option_strings}
    names = {flag[2:].replace("_", "-") for flag in flags if flag.startswith("--")} - {"help"}
    assert names <= options.OF_TORCHRUN <= options.BY_NAME.keys()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-restart-s=3"], "there is no option --max-restart-s; did you mean --max-restarts?"),
        (["--nprocs-per-node=2"], "did you mean --nproc-per-node?"),
        (["--rdzv_endpont=a"], "did you mean --rdzv-endpoint?"),
        (["-nproc-per-node=2"], "did you mean --nproc-per-node?"),
        (["--start-method=thread"], "--start-method is 'thread': expected spawn, fork"),
        (["--no"], "--no is ambiguous: it could be"),
        (["--role"], "--role needs a value"),
        (["--role", "--module"], "--role needs a value"),
        (["--module=1"], "--module takes no value"),
        (["--xyzzy"], "there is no option --xyzzy ("),
    ],
)
def test_a_wrong_option_is_named_with_the_nearest_one(words: list[str], expected: str) -> None:
    assert expected in refusal([*words, "train.py"] if words != ["--role"] else words)


def test_short_options_may_be_joined(script: str) -> None:
    got = configure(["-mr3", "-t=1", "json.tool"])
    assert program(got) == (sys.executable, "-u", "-m", "json.tool")
    assert (got.logs.redirects, got.logs.tee) == (Std.ALL, Std.OUT)


def test_a_program_without_python_is_looked_up_in_path(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(stat.S_IRWXU)
    got = configure(["--no-python", "tool", "a"], {"PATH": str(tmp_path)})
    assert program(got) == ("tool", "a")


def test_the_workers_interpreter_can_be_chosen(script: str) -> None:
    assert program(configure([script], {"PYTHON_EXEC": "/bin/sh"}))[0] == "/bin/sh"


def test_precedence_is_flag_variable_default(script: str) -> None:
    environ = {"PET_MAX_RESTARTS": "4"}
    assert configure([script]).spec.max_restarts == 0
    assert configure([script], environ).spec.max_restarts == 4
    assert configure(["--max-restarts=2", script], environ).spec.max_restarts == 2


def test_switches_have_variables_with_0_and_1(script: str) -> None:
    assert program(configure([script], {"PET_MODULE": "1"}))[2] == "-m"
    assert program(configure([script], {"PET_MODULE": "0", "PET_RUN_PATH": "0"}))[2] == script


def test_the_shutdown_timeout_has_a_variable_of_torch(script: str) -> None:
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    assert configure([script], environ).shutdown_timeout == 5.0
    assert configure(["--shutdown-timeout=6", script], environ).shutdown_timeout == 6.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nproc-per-node=0"], "--nproc-per-node is '0'"),
        (["--nproc-per-node=-1"], "--nproc-per-node is '-1'"),
        (["--nproc-per-node=Many"], "--nproc-per-node is 'Many'"),
        (["--nproc-per-node"], "required: PROGRAM"),
        (["--rdzv-endpoint=192.0.2.1:29400"], "192.0.2.1 is not an address of this node"),
        (["--rdzv-endpoint=localhost:port"], "'port' is not a port"),
        (["--rdzv-endpoint=[::1"], r"expected \[ADDRESS\]:PORT"),
        (["--master-addr=192.0.2.1"], "192.0.2.1 is not an address of this node"),
        (["--master-addr=127.0.0.1", "--local-addr=127.0.0.2"], "name different addresses"),
        (["--master-port=1", "--rdzv-endpoint=127.0.0.1:2"], "name different ports"),
        (["--master-port=65536"], "whole number from 0 to 65535"),
        (["--rdzv-conf=heartbeat=3"], "there is no key 'heartbeat'"),
        (["--rdzv-conf=timeout"], "not of the form KEY=VALUE"),
        (["--rdzv-conf=timeout=soon"], "expected a number of seconds"),
        (["--rdzv-id=a/b"], "cannot be part of a file name"),
        (["--max-restarts=-1"], "whole number from 0"),
        (["--max-restarts=1.5"], "whole number from 0"),
        (["--monitor-interval=0"], "greater than 0"),
        *(
            ([f"--no-restart-codes={codes}"], f"is '{codes}': expected exit codes from 1 to 255")
            for codes in ("0", "256", "3-", "5-4", "x", "3,,4")
        ),
        (["--start-timeout=0"], "--start-timeout is '0': .* greater than 0"),
        (["--shutdown-timeout=-1"], "number of seconds from 0"),
        (["--shutdown-timeout=nan"], "number of seconds from 0"),
        (["--signals-to-handle=SIGNOTHING"], "there is no signal 'SIGNOTHING'"),
        (["--signals-to-handle=SIGKILL"], "SIGKILL cannot be handled"),
        (["--stop-scope=all"], "expected handler, group or leader"),
        (["-r", "4"], "--redirects: '4' selects no streams"),
        (["--tee=0:1,0:2"], "names rank 0 twice"),
        (["--local-ranks-filter=x"], "not a list of local ranks"),
        (["--log-dir=/dev/zero"], "cannot make /dev/zero"),
        (["--log-dir=/proc/logs"], "cannot make /proc/logs"),
        (["-m", "--no-python"], "exclude each other"),
        (["--standalone=1"], "--standalone takes no value, but was given '1'"),
        (["-x"], "there is no option -x"),
        (["--numa-binding", "near"], "--numa-binding is 'near': expected node, socket"),
        (["--metrics-port=0"], "--metrics-port is '0'"),
        (["--nproc-per-node=99999999999999999999"], "expected a number from 1 to 4096"),
        (["--max-restarts=" + "9" * 5000], "whole number from 0 to 2147483647"),
        (["--voter-port-range=x"], "--voter-port-range is 'x': expected FIRST:LAST"),
        (
            ["--token-file=/proc/version", "--rdzv-id=j"],
            "file /proc/version is accessible",
        ),
        (["--master-addr=$(HOST)"], "a variable in it was not replaced"),
        (["--rdzv-endpoint=http://a:1"], "without a scheme"),
        (["--rdzv-endpoint=29500"], "not only a number"),
        (["--rdzv-endpoint=a b:1"], "expected the name or the address of a host"),
        (["--rdzv-endpoint=fd00:75::1:29400"], r"with a port write \[fd00:75::1\]:29400"),
        (["--rdzv-endpoint=[fe80::1]:29400"], "link-local address needs the interface"),
        (["--local-addr=fe80::1%"], "write fe80::1%eth0"),
        (["--local-addr=fd00:x::1"], "it is no IPv6 address"),
        (["--rdzv-endpoint=a..b"], "1 to 63 characters between dots"),
        (["--local-addr=" + "a" * 70], "1 to 63 characters between dots"),
        (["\u2013nproc-per-node=2"], "begins with a typographic dash"),
        (["python3"], "starts the interpreter itself, so leave out python3"),
        (["statu"], "did you mean the subcommand status"),
        (["--event-log-handler=file"], "--event-log-handler: there is no event handler 'file'"),
        (["--logs-specs=mine"], "--logs-specs: there is no logs plug-in 'mine'"),
        (["-r3", "--log-max-bytes=12"], "--log-max-bytes is '12': .* from 4096, as in 500M"),
        (["--preload=a b"], "--preload: 'a b' is not the name of a module"),
        (["--hang-action=restart"], "it needs --hang-timeout"),
        (["--bad-node-codes=40-42", "--no-restart-codes=3,41"], "41 is in --bad-node-codes and in"),
        (["--forward-signals=USR1,TERM"], r"SIGTERM stops the workers \(--signals-to-handle\)"),
        (["--forward-signals=USR3"], "--forward-signals: there is no signal 'USR3'"),
        (["--drain=0"], "--drain is '0'"),
        (["--drain=10", "--signals-to-handle=SIGINT"], "SIGTERM is not handled"),
        (["--drain-signal=USR1,USR2"], "expected one signal"),
        (["--drain-signal=USR1", "--forward-signals=USR1"], "is forwarded to the workers"),
    ],
)
def test_invalid_values_are_rejected_in_one_line(
    script: str, words: list[str], expected: str
) -> None:
    assert re.search(expected, refusal([*words, script]))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"PET_MODULE": "yes"}, "PET_MODULE is 'yes': expected 0 or 1"),
        ({"PET_MODULE": ""}, "PET_MODULE is '': expected 0 or 1"),
        ({"PET_MAX_RESTARTS": "abc"}, "PET_MAX_RESTARTS is 'abc'"),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "-3"}, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '-3'"),
        ({"LOGLEVEL": "LOUD"}, "LOGLEVEL is 'LOUD'"),
        ({"PYTHON_EXEC": "/no/python"}, r"interpreter \(PYTHON_EXEC\) /no/python does not exist"),
    ],
)
def test_variables_are_validated_like_flags(
    script: str, environ: dict[str, str], expected: str
) -> None:
    assert re.search(expected, refusal([script], environ))


def test_a_token_that_cannot_be_used_is_named_by_its_variable(script: str) -> None:
    text = refusal(["--rdzv-id=j", script], {"ELASTIC_TOKEN": "short"})
    assert text.startswith("ELASTIC_TOKEN: the token line 1 has 5 characters")


def test_programs_that_cannot_start_are_found_before_anything_does(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    assert "the following arguments are required: PROGRAM" in refusal([])
    assert "does not exist" in refusal(["/no/such.py"])
    assert "cannot be reached: File name too long" in refusal(["/" + 300 * "x"])
    assert "module or program is empty" in refusal([""])
    assert "module or program is empty" in refusal(["-m", ""])
    assert "is a directory without __main__.py" in refusal([str(tmp_path)])
    assert "is not executable" in refusal(["--no-python", str(plain)])
    assert "is a directory" in refusal(["--no-python", str(tmp_path)])
    assert "does not exist" in refusal(["--no-python", str(tmp_path / "none")])
    assert "is not in PATH" in refusal(["--no-python", "no-such-tool"], {"PATH": "/nowhere"})


def test_help_and_version_need_no_valid_environment() -> None:
    for words in (["-h"], ["--role", "x", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            resolve.parse(words, {"PET_NONSENSE": "1"})
        assert ended.value.code == 0


def test_the_short_help_is_one_screen_of_options_that_exist() -> None:
    lines = help.text().splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 80
    assert sum(option.brief != "" for option in options.OPTIONS) >= 20
    assert "--help all" in help.text()
    assert [row for row in lines if "{}" in row or "( " in row] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], help.text),
        (["-h", "train.py"], help.text),
        (["--help", "all"], help.full_text),
        (["--help=all"], help.full_text),
        (["-h", "all"], help.full_text),
    ],
)
def test_help_prints_one_screen_or_everything(
    words: list[str], expected: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command_line.read(words, {})
    assert capsys.readouterr().out == expected()


def test_help_with_another_value_is_refused() -> None:
    assert "expected all" in refusal(["--help=some"])


def test_openmp_threads_share_the_usable_cpus(script: str) -> None:
    got = configure(["--nproc-per-node=2", script])
    assert got.environment["OMP_NUM_THREADS"] == str(max(1, devices.usable_cpus() // 2))
    many = configure(["--nproc-per-node=4096", script])
    assert many.environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
        ({"NCCL_ASYNC_ERROR_HANDLING": "0"}, {"NCCL_ASYNC_ERROR_HANDLING": "0"}),
        ({"OMP_NUM_THREADS": "7", "NCCL_ASYNC_ERROR_HANDLING": "0"}, {"OMP_NUM_THREADS": "7"}),
    ],
)
def test_user_settings_are_not_overwritten(
    script: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    environment = configure([script], environ).environment
    for name, value in expected.items():
        assert environment[name] == value
    if "NCCL_ASYNC_ERROR_HANDLING" in environ:
        assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in environment


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        (["--start-method=forkserver"], {}, "--start-method has no effect"),
        ([], {"PET_START_METHOD": "fork"}, "PET_START_METHOD has no effect"),
        (["--node-rank=1"], {}, "--node-rank is 1: ignored, since the only node has rank 0"),
        (["--rdzv-conf=rank=2"], {}, "--rdzv-conf: rank is 2: ignored"),
        (
            ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400"],
            {},
            "--rdzv-endpoint is 'localhost:29400': ignored, since a job of one node",
        ),
        (["--voter-port-range=8:9"], {}, "--voter-port-range has no effect"),
        (["--log-dir=/dev/null", "-r3"], {}, "--log-dir is /dev/null: redirects and tee have no"),
        (["--tee=0:1,1:1"], {}, "--tee: there is no local rank 1 among 1 worker"),
        (["--local-ranks-filter=1"], {}, "there is no local rank 1"),
        ([], {"PET_NPROC": "2"}, "is ignored (did you mean PET_NPROC_PER_NODE?)"),
        ([], {"PET_MAX_RESTART": "2"}, "did you mean PET_MAX_RESTARTS?"),
    ],
)
def test_what_torchrun_accepts_is_one_warning_and_with_strict_an_error(
    script: str, words: list[str], environ: dict[str, str], expected: str
) -> None:
    words = [*words, "--node-rank=7"] if "node-rank" not in str(words) + str(environ) else words
    warnings = [text for level, text in configure([*words, script], environ).notes if level == 30]
    assert len(warnings) == 1
    assert expected in warnings[0]
    assert expected in refusal([*words, "--strict", script], environ)
    assert expected in refusal([*words, script], environ | {"PET_STRICT": "1"})


def test_a_monitor_interval_is_no_warning_but_with_strict_an_error(script: str) -> None:
    words = ["--monitor-interval=1", script]
    assert [text for level, text in configure(words).notes if level == 30] == []
    refused = refusal(["--strict", *words])
    assert "--monitor-interval has no effect" in refused and "because of --strict" in refused


def test_a_free_port_of_one_node_is_no_setting_without_effect(script: str) -> None:
    configure(["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--strict", script])


def test_the_default_start_method_is_no_setting_without_effect(script: str) -> None:
    notes = configure(["--start-method=spawn", "--strict", script]).notes
    assert [text for level, text in notes if level == 30] == []


def test_a_script_on_standard_input_is_not_forked() -> None:
    job = configure(["--warm", "--dry-run", "-"])
    assert job.warm_template == ()
    assert "--warm has no effect: the script is read from standard input" in str(job.notes)


def test_a_dry_run_shows_warm_workers_and_the_agreed_step(script: str) -> None:
    text = plan.text(configure(["--preload=json,zlib", "--drain=90", script]), {})
    assert "warm workers:       forked from a process that imports json,zlib\n" in text
    assert "stop at a step:     after SIGTERM, within 1 min 30 s\n" in text
    assert "stop at a step" not in plan.text(configure([script]), {})
    assert "forked from a process that imports torch and" in plan.text(
        configure(["--warm", script]), {}
    )


def test_an_empty_role_is_the_default_one(script: str) -> None:
    got = configure(["--role=", "--strict", script])
    assert (got.spec.role, [text for level, text in got.notes if level == 30]) == ("default", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${local_rank}", "3"),
        ("$local_rank", "3"),
        ("log-$local_rank.txt", "log-3.txt"),
        ("$local_ranks ${local_rank} $LOCAL_RANK", "$local_ranks 3 $LOCAL_RANK"),
        ("$$ $$local_rank $HOME ${x} $", "$$ $$local_rank $HOME ${x} $"),
    ],
)
def test_only_the_local_rank_is_replaced(text: str, expected: str) -> None:
    assert substitute(text, 3) == expected


@given(st.text(string.ascii_letters + "${}_ ").filter(lambda text: "local_rank" not in text))
def test_text_without_the_name_is_unchanged(text: str) -> None:
    assert substitute(text, 5) == text


@given(
    st.dictionaries(st.integers(0, 40), st.sampled_from(list(Std)), min_size=1),
    st.booleans(),
)
def test_stream_selection_round_trips_through_text(streams: dict[int, Std], spaced: bool) -> None:
    joint = ", " if spaced else ","
    text = joint.join(f"{rank}:{int(which)}" for rank, which in streams.items())
    assert Std.from_str(text) == streams


@given(
    st.lists(
        st.sampled_from([o for o in options.OPTIONS if o.help and not o.is_switch]),
        unique_by=lambda option: option.name,  # some may be given several times
    )
)
def test_flag_and_variable_are_equivalent(chosen: list[options.Option]) -> None:
    flags = [word for option in chosen for word in (f"--{option.name}", "text")]
    environ = {option.variable: "text" for option in chosen}
    by_flag = command_line.read([*flags, "x"], {}).values
    by_variable = command_line.read(["x"], environ).values
    assert {k: v.text for k, v in by_flag.items()} == {k: v.text for k, v in by_variable.items()}


def test_log_directory_is_created_and_absolute(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs = configure(["--log-dir", "a/b", "-r3", script]).logs
    assert logs.log_dir == str(tmp_path / "a" / "b")
    assert os.path.isdir(logs.log_dir)


def test_the_tables_of_the_manual_are_those_of_the_options() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_options_page.py"), "--check"]
    assert subprocess.run(command).returncode == 0, f"run {' '.join(command[:2])}"


def test_the_help_marks_no_code_and_ends_with_the_default() -> None:
    for option in options.OPTIONS:
        assert option.help.count("`") % 2 == option.more.count("`") % 2 == 0, option.name
        assert not (option.default and option.unset), option.name
        assert "Default:" not in option.help, option.name
    assert "`" not in help.full_text()
    assert options.BY_NAME["role"].about.endswith("prefixes. Default: default.")
    assert options.BY_NAME["failure-grace"].about.endswith("failed. Default: --shutdown-timeout.")


def test_times_of_changes_in_place_need_these_changes(script: str) -> None:
    in_place = "--on-membership-change=inplace"
    for name, default in (("inplace-grace", 5.0), ("inplace-prepare", None)):
        field = name.replace("-", "_")
        assert configure([script]).native[field] is None
        assert configure([in_place, script]).native[field] == default
        assert configure([in_place, f"--{name}=7", script]).native[field] == 7.0
        for words in ([f"--{name}=7"], [in_place, f"--{name}=0"]):
            with pytest.raises(ConfigError, match=name):
                configure([*words, script])


def test_a_native_setting_has_the_name_and_the_default_of_its_field(script: str) -> None:
    native = configure([script]).native
    for option in options.OPTIONS:
        assert (option.read is None) == (not option.native and not option.rendezvous), option.name
        if option.read is None:
            continue
        made = _C.AgentOptions if option.native else _C.RendezvousOptions
        name = option.native or option.rendezvous
        signature = made.__init__.__doc__ or ""
        field = re.search(rf" {name}: [^=]*= ([-'\w.<\[]+)", signature)
        assert field is not None, option.name
        if option.default.isdigit():
            assert float(field[1]) == native[option.native] == float(option.default)
    assert "failure_grace" not in native


def test_programs_get_the_launchers_grammar(script: str) -> None:
    """Only the launcher's parser decides where PROGRAM is, also for a parser with more options."""
    made = arguments.parser({})
    made.add_argument("--mine", action="store_true")
    made.add_argument("--size", type=int)
    for words in (
        ["-mr3", "--mine", "--size", "2", "--nproc", "4", "x", "--n", "--r", "--", "-r", "1"],
        ["--mine", "-r=3", "--size=2", "--nproc_per_node=4", "-m", "--", "x", "--n", "--r",
         "--", "-r", "1"],
    ):  # fmt: skip
        args = made.parse_args(words)
        assert (args.module, args.redirects, args.nproc_per_node) == (True, "3", "4")
        assert (args.mine, args.size, args.training_script) == (True, 2, "x")
        assert args.training_script_args == ["--n", "--r", "--", "-r", "1"]
    with pytest.raises(SystemExit):
        made.parse_args(["--r", "3", script])  # several options begin so
    assert made.parse_known_args(["--unknown", script])[1] == ["--unknown"]
