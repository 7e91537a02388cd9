"""The options for nodes select one rendezvous backend, or give one error message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic.cli import resolve
from elastic.cli.config import JobConfig, RendezvousConfig
from elastic.errors import ConfigError
from elastic.rendezvous import keys
from hypothesis import given
from hypothesis import strategies as st

from support.paths import ROOT

C10D = ["--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=host7:29500", "--rdzv-id=job"]
STATIC = ["--nnodes=2", "--master-addr=host7"]
# What options set alone, if none of them is given.
NATIVE = {"on_exclude": "", "on_loss": "replace", "topology": ""}


def configure(words: list[str], environ: dict[str, str] | None = None) -> JobConfig:
    return resolve.parse([*words, "--no-python", "/bin/true"], environ or {})


def refusal(words: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        configure(words, environ)
    text = str(caught.value)
    assert "\n" not in text and text
    return text


def notes_of(words: list[str]) -> list[str]:
    return [sentence for _, sentence in configure(words).notes]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nnodes=1:1"],
        ["--standalone"],
        ["--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=elsewhere:1"],
        ["--rdzv-backend=c10d"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29400"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=host7:0"],
        ["--rdzv-endpoint=localhost:29400"],
        ["--master-addr=localhost", "--master-port=29500", "--node-rank=0"],
    ],
)
def test_job_of_one_node_needs_no_rendezvous(words: list[str]) -> None:
    got = configure(words)
    assert got.rendezvous is None
    assert re.fullmatch("[0-9a-f-]{36}", got.spec.run_id)


def test_coordinator_is_at_the_endpoint() -> None:
    got = configure(C10D)
    assert got.spec.run_id == "job"
    assert (got.local_addr, got.spec.master_addr, got.spec.master_port) == ("", None, None)
    assert got.rendezvous == RendezvousConfig(
        "c10d", 2, 4, keys.Keys({}), endpoint_host="host7", endpoint_port=29500, native=NATIVE
    )


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (["--master-port=29500"], {}),
        ([], {"PET_MASTER_PORT": "29500"}),
        (["--rdzv-endpoint=host7,host8:29501", "--master-port=29501"], {}),
    ],
)
def test_the_workers_store_does_not_use_the_port_of_the_endpoint(
    words: list[str], environ: dict[str, str]
) -> None:
    got = configure([*C10D, *words], environ)
    assert got.spec.master_port is None
    (note,) = [text for _, text in got.notes if "the port of the rendezvous endpoint" in text]
    assert note.startswith(("--master-port is 2950", "PET_MASTER_PORT is 29500"))
    assert configure([*C10D, "--master-port=29600"]).spec.master_port == 29600


def test_a_job_of_one_node_may_have_spares_on_other_hosts() -> None:
    got = configure(["--rdzv-backend=c10d", "--rdzv-endpoint=host7", "--rdzv-id=job"]).rendezvous
    assert (got.min_nodes, got.max_nodes) == (1, 1)
    assert (got.endpoint_host, got.endpoint_port) == ("host7", 29400)


def test_static_nodes_use_node_0_and_given_ranks() -> None:
    got = configure([*STATIC, "--node-rank=1"])
    assert got.rendezvous == RendezvousConfig(
        "static",
        2,
        2,
        keys.Keys({}, voters=1),
        endpoint_host="host7",
        endpoint_port=29500,
        is_host=False,
        node_rank=1,
        native=NATIVE,
    )
    assert (got.spec.run_id, got.spec.master_port) == ("none", 29500)
    assert got.notes == configure(STATIC).notes
    assert configure(STATIC).rendezvous.is_host is True


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (["--rdzv-endpoint=h"], ("h", 29400)),
        (["--rdzv-endpoint=h:1"], ("h", 1)),
        (["--rdzv-endpoint=[fd00::1]:7"], ("fd00::1", 7)),
        (["--rdzv-endpoint=[fd00::1]"], ("fd00::1", 29400)),
        (["--rdzv-endpoint=fd00::1"], ("fd00::1", 29400)),
        (["--rdzv-endpoint=10.0.0.7:65535"], ("10.0.0.7", 65535)),
    ],
)
def test_an_endpoint_has_a_host_and_perhaps_a_port(
    words: list[str], endpoint: tuple[str, int]
) -> None:
    got = configure([*C10D[:2], *words]).rendezvous
    assert (got.endpoint_host, got.endpoint_port) == endpoint


def test_further_endpoints_follow_the_first_one() -> None:
    got = configure([*C10D[:2], "--rdzv-endpoint=h1:1, [fd00::1]:7,h3"]).rendezvous
    assert got.endpoints == (("h1", 1), ("fd00::1", 7), ("h3", 29400))
    assert got.options("job", "").endpoint_host == "h1"


@pytest.mark.parametrize(
    ("endpoints", "expected"),
    [
        ("h1:1,h1:1", "'h1:1' is listed twice"),
        (",".join(f"h{i}" for i in range(65)), "has 65 endpoints: list at most 64"),
        ("h1:1,", "the host is missing"),
        ("h1:1,h2:0", "the other nodes need a given port, not 0"),
    ],
)
def test_a_faulty_list_of_endpoints_is_rejected(endpoints: str, expected: str) -> None:
    assert expected in refusal([*C10D[:2], f"--rdzv-endpoint={endpoints}"])


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        (["--master-addr=127.0.0.1"], ("127.0.0.1", 29500)),
        (["--master-addr=h"], ("h", 29500)),
        (["--master-addr=[fd00::1]", "--master-port=7"], ("fd00::1", 7)),
        (["--rdzv-endpoint=h:7"], ("h", 7)),
        (["--rdzv-endpoint=h", "--master-port=8"], ("h", 8)),
        (["--rdzv-endpoint=h:8", "--master-addr=h", "--master-port=8"], ("h", 8)),
    ],
)
def test_static_has_two_spellings_of_its_endpoint(
    words: list[str], endpoint: tuple[str, int]
) -> None:
    got = configure(["--nnodes=2", *words])
    assert (got.rendezvous.endpoint_host, got.rendezvous.endpoint_port) == endpoint
    assert got.spec.master_port == endpoint[1]


@pytest.mark.parametrize(
    ("words", "backend", "state"),
    [
        (["--rdzv-backend=file", "--rdzv-endpoint=/shared/job"], "file", "/shared/job"),
        (
            ["--rdzv-backend=c10d", "--rdzv-conf=store_type=FILE", "--rdzv-endpoint=/shared/job"],
            "file",
            "/shared/job",
        ),
        (["--rdzv-backend=etcd-v2", "--rdzv-endpoint=h:2379"], "etcd-v2", "h:2379"),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=h"], "etcd", "h"),
        (["--rdzv-backend=mine"], "mine", "mine"),
    ],
)
def test_other_backends_share_a_state(words: list[str], backend: str, state: str) -> None:
    got = configure(["--nnodes=2", "--rdzv-id=job", *words]).rendezvous
    assert (got.backend, got.store, got.endpoint_host) == (backend, state, "")


def test_plug_in_receives_its_keys_unchanged() -> None:
    words = ["--nnodes=2", "--rdzv-backend=mine", "--rdzv-conf=colour=blue, join_timeout=3"]
    got = configure(words).rendezvous
    assert got.keys.parameters == {"colour": "blue", "join_timeout": "3"}
    assert got.keys.timings == {"join_timeout": 3.0}


@pytest.mark.parametrize(
    ("conf", "timings"),
    [
        ("join_timeout=600", {"join_timeout": 600.0}),
        ("last_call_timeout=0.5", {"last_call_timeout": 0.5}),
        ("settle=0, shrink_delay=2.5", {"settle": 0.0, "shrink_delay": 2.5}),
        ("node_timeout=1.5", {"node_timeout": 1.5}),
        ("reconnect_grace=0", {"reconnect_grace": 0.0}),
        ("store_grace=90,store_grace=9", {"store_grace": 9.0}),
        ("keep_alive_interval=2", {"node_timeout": 6.0}),
        ("keep_alive_max_attempt=2", {"node_timeout": 10.0}),
        ("keep_alive_interval=0.5,keep_alive_max_attempt=4", {"node_timeout": 2.0}),
        ("close_timeout=30,heartbeat_timeout=5,read_timeout=60", {}),
        ("protocol=https,ca_cert=a,cert=b,key=c,cacert=d,ssl_cert=e,ssl_cert_key=f", {}),
        ("etcd_prefix=/x,timeout=900,store_type=tcp", {}),
    ],
)
def test_settings_of_the_rendezvous_become_seconds(conf: str, timings: dict[str, float]) -> None:
    assert configure([*C10D, f"--rdzv-conf={conf}"]).rendezvous.keys.timings == timings
    assert configure(C10D, {"PET_RDZV_CONF": conf}).rendezvous.keys.timings == timings


def test_torchs_timeout_is_the_join_timeout_where_torch_has_one() -> None:
    assert configure([*STATIC, "--rdzv-conf=timeout=9"]).rendezvous.keys.timings == {
        "join_timeout": 9.0
    }
    expected = notes_of([*C10D, "--rdzv-conf=timeout=9"])
    assert "timeout in --rdzv-conf has no effect with c10d; use join_timeout" in expected


@pytest.mark.parametrize("key", ["close_timeout", "heartbeat_timeout", "read_timeout"])
def test_key_without_effect_is_reported_in_one_line(key: str) -> None:
    expected = [note for note in notes_of([*C10D, f"--rdzv-conf={key}=7"]) if key in note]
    assert len(expected) == 1 and f"{key} in --rdzv-conf has no effect: " in expected[0]


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("Yes", True), ("t", True), ("0", False), ("FALSE", False)]
)
def test_is_host_can_be_set(value: str, expected: bool) -> None:
    for words in (C10D, STATIC):
        assert configure([*words, f"--rdzv-conf=is_host={value}"]).rendezvous.is_host is expected


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (["--on-node-loss=fail"], "on_loss", "fail"),
        (["--max-membership-changes=3"], "max_membership_changes", 3),
        (["--topology=rack 4"], "topology", "rack 4"),
        (["--on-exclude=drain $HOST"], "on_exclude", "drain $HOST"),
        (["--node-rank=3"], "node_rank", 3),
        (["--node_rank=3"], "node_rank", 3),
    ],
)
def test_an_option_about_nodes_sets_its_field(
    words: list[str], field: str, expected: object
) -> None:
    name, _, value = words[0].partition("=")
    variable = "PET_" + name.strip("-").replace("-", "_").upper()
    for job in (configure([*C10D, *words]), configure(C10D, {variable: value})):
        assert (job.rendezvous._asdict() | job.rendezvous.native)[field] == expected
        assert job.rendezvous.options("job", "") is not None


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        ([], "failure_grace", None),
        (["--shutdown-timeout=7.5"], "shutdown_timeout", 7.5),
        (["--shutdown-timeout=7.5", "--failure-grace=0.5"], "failure_grace", 0.5),
        ([], "restart_backoff", 1.0),
        (["--restart-backoff=0"], "restart_backoff", 0.0),
        ([], "exit_barrier_timeout", None),
        (["--exit-barrier-timeout=0.25"], "exit_barrier_timeout", 0.25),
        (["--worker-port-range=2000:2009"], "worker_ports", (2000, 2009)),
        (["--local-addr=eth7.host"], "local_addr", "eth7.host"),
        (["--master-port=7000"], "master_port", 7000),
    ],
)
def test_an_option_of_the_agent_sets_its_field(
    words: list[str], field: str, expected: object
) -> None:
    job = configure([*C10D, *words])
    assert (vars(job.spec) | job._asdict() | job.native).get(field) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["--voter-port-range=2000:2009"],
        ["--rdzv-conf=voter_port_range=2000:2009"],
        ["--voter-port-range=2000:2009", "--rdzv-conf=voter_port_range=2000:2009"],
    ],
)
def test_the_range_of_voter_ports_has_two_spellings(words: list[str]) -> None:
    assert configure([*C10D, *words]).rendezvous.keys.voter_ports == (2000, 2009)


def test_variables_alone_describe_a_whole_job() -> None:
    environ = {
        "PET_NNODES": "2:4",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "host7:29500",
        "PET_RDZV_ID": "job",
    }
    assert configure([], environ).rendezvous == configure(C10D).rendezvous
    # As some cluster operators set them for every backend.
    environ |= {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "host7", "PET_MASTER_PORT": "23456"}
    got = configure([], environ)
    assert (got.rendezvous.node_rank, got.spec.master_port) == (1, 23456)
    assert any("PET_MASTER_ADDR has no effect with c10d" in note for _, note in got.notes)


def test_the_store_can_be_left_to_the_workers() -> None:
    variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    environments: list[dict[str, str]] = [{}, {variable: "0"}, {variable: "1"}]
    assert [configure(C10D, e).native["share_store"] for e in environments] == [
        True,
        True,
        False,
    ]


def test_a_job_without_a_name_is_called_as_torchrun_calls_it() -> None:
    got = configure(C10D[:3])
    assert got.spec.run_id == "none"
    assert [level for level, note in got.notes if "this job has no --rdzv-id" in note] == [30]
    assert not [note for note in notes_of(STATIC) if "this job has no --rdzv-id" in note]


def test_only_a_job_without_a_run_id_has_the_name_of_its_program() -> None:
    def program(*words: str) -> str:
        rendezvous = configure([*C10D[:3], *words]).rendezvous
        assert rendezvous is not None
        return rendezvous.program

    base = program(__file__, "--token=secret")
    assert base.startswith(Path(__file__).name + " (")
    assert "secret" not in base
    assert program(__file__, "--token=other") != base
    assert program("--rdzv-id=none", __file__, "--token=secret") == base
    assert program("--rdzv-id=job", __file__) == ""
    assert program("--rdzv-backend=file", "--rdzv-endpoint=/tmp/state", __file__) == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nnodes=4:1"], "--nnodes is '4:1': expected N or MIN:MAX, with 1 <= MIN <= MAX"),
        (["--nnodes=0:2"], "expected N or MIN:MAX"),
        (["--nnodes=2:"], "expected N or MIN:MAX"),
        (["--nnodes=1:2:3"], "expected N or MIN:MAX"),
        (["--nnodes=-2"], "expected N or MIN:MAX"),
        (["--nnodes=two"], "expected N or MIN:MAX"),
        (["--nnodes=100001"], "at most 100000 nodes"),
        (["--nnodes=2:4"], "--nnodes is 2:4, but with the static backend the number .* is fixed"),
        (["--nnodes=2"], "the address of node 0 is missing: add --master-addr=HOST"),
        (["--nnodes=2", "--node-rank=1", "--master-addr="], "the address of node 0 is missing"),
        (["--nnodes=2", "--standalone"], "--standalone asks for a job of one node, but --nnodes"),
        (["--nnodes=2", "--rdzv-backend=c10d"], r"add --rdzv-endpoint=HOST\[:PORT\]"),
        (["--nnodes=2", "--rdzv-backend=file"], "must name a file that all nodes see"),
        (["--nnodes=2", "--rdzv-backend=etcd"], r"must name HOST\[:PORT\] of the server"),
        (["--rdzv-backend="], "--rdzv-backend is empty"),
        ([*C10D, "--rdzv-endpoint=h:0"], "need a given port, not 0"),
        ([*C10D, "--rdzv-endpoint=h:http"], "'http' is not a port"),
        ([*C10D, "--rdzv-endpoint=h:65536"], "'65536' is not a port"),
        ([*C10D, "--rdzv-endpoint=[::1"], r"expected \[ADDRESS\]:PORT"),
        ([*C10D, "--rdzv-endpoint=:29400"], "the host is missing"),
        ([*C10D, "--rdzv-id="], "--rdzv-id is empty: give every node the same run id"),
        ([*C10D, "--rdzv-id=a/b"], "cannot be part of a file name"),
        ([*C10D, f"--rdzv-id={'x' * 256}"], "--rdzv-id is longer than 255 bytes"),
        ([*C10D, f"--topology={'x' * 256}"], "--topology is longer than 255 bytes"),
        ([*C10D, f"--role={'x' * 256}"], "--role is longer than 255 bytes"),
        ([f"--role={'x' * 256}"], "--role is longer than 255 bytes"),
        *(
            ([f"--{name}=a{text}b"], f"--{name} is 'a.*b': expected printable UTF-8, without")
            for name in ("rdzv-id", "role")
            for text in ("\n", "\x1b[31m", "\x7f", "\x85", "\udcff", "\0")
        ),
        ([*C10D, "--rdzv-conf=rank=1"], "rank needs the static backend"),
        ([*C10D, "--node-rank=-1"], "--node-rank is '-1': expected a whole number"),
        ([*C10D, "--on-node-loss=ignore"], "expected replace or fail"),
        ([*C10D, "--max-membership-changes=many"], "expected a whole number"),
        ([*C10D, "--failure-grace=soon"], "--failure-grace is 'soon': expected a number of sec"),
        ([*C10D, "--exit-barrier-timeout=-1"], "expected a number of seconds from 0"),
        ([*C10D, "--worker-port-range=9:8"], "expected FIRST:LAST"),
        ([*C10D, "--worker-port-range=9"], "expected FIRST:LAST"),
        ([*C10D, "--worker-port-range=1:65536"], "expected FIRST:LAST"),
        ([*C10D, "--worker-port-range=8:9", "--master-port=8"], "has no effect: MASTER_PORT is 8"),
        ([*STATIC, "--worker-port-range=8:9"], "has no effect: MASTER_PORT is 29500"),
        ([*C10D, "--voter-port-range=9:8"], "--voter-port-range is '9:8': expected FIRST:LAST"),
        ([*STATIC, "--voter-port-range=8:9"], "--voter-port-range has no effect with static"),
        (
            [*C10D, "--voter-port-range=8:9", "--rdzv-conf=voter_port_range=7:9"],
            "--voter-port-range and voter_port_range in --rdzv-conf differ",
        ),
        ([*STATIC, "--node-rank=2"], "--node-rank is 2: 2 nodes have the ranks 0 to 1"),
        ([*STATIC, "--rdzv-conf=rank=2"], "--rdzv-conf: rank is 2: 2 nodes have the ranks"),
        ([*STATIC, "--node-rank=1", "--rdzv-conf=rank=0"], "name different ranks: 1 and 0"),
        ([*STATIC, "--rdzv-endpoint=host8:1"], "name different addresses: host8 and host7"),
        ([*STATIC, "--rdzv-endpoint=host7:1", "--master-port=2"], "name different ports: 1 and 2"),
        ([*STATIC, "--master-port=0"], "need a given port, not 0"),
        ([*C10D, "--rdzv-conf=setle=1"], "there is no key 'setle'; did you mean settle?"),
        ([*C10D, "--rdzv-conf=join_timout=1"], "did you mean join_timeout?"),
        ([*C10D, "--rdzv-conf=colour=blue"], "there is no key 'colour'; known are join_timeout"),
        ([*C10D, "--rdzv-conf=settle"], "'settle' is not of the form KEY=VALUE"),
        ([*C10D, "--rdzv-conf=settle="], "'settle=' is not of the form KEY=VALUE"),
        ([*C10D, "--rdzv-conf=,"], "'' is not of the form KEY=VALUE"),
        ([*C10D, "--rdzv-conf=settle=now"], "--rdzv-conf: settle is 'now': expected a number"),
        ([*C10D, "--rdzv-conf=settle=inf"], "expected a number of seconds from 0"),
        ([*C10D, "--rdzv-conf=node_timeout=0"], "node_timeout is '0': .* greater than 0"),
        ([*C10D, "--rdzv-conf=join_timeout=0"], "join_timeout is '0': .* greater than 0"),
        ([*C10D, "--rdzv-conf=keep_alive_interval=0"], "keep_alive_interval is '0'"),
        ([*C10D, "--rdzv-conf=read_timeout=0"], "read_timeout is '0'"),
        (
            [*C10D, "--rdzv-conf=node_timeout=1,keep_alive_interval=1"],
            "both set the time after which a silent",
        ),
        ([*STATIC, "--rdzv-conf=timeout=1,join_timeout=2"], "both set the limit for nodes to join"),
        ([*C10D, "--rdzv-conf=is_host=maybe"], "is_host is 'maybe': expected true or false"),
        ([*C10D, "--rdzv-conf=store_type=redis"], "store_type is 'redis': expected tcp or file"),
        ([*STATIC, "--rdzv-conf=rank=first"], "rank is 'first': expected a node's rank"),
    ],
)
def test_invalid_values_are_rejected_in_one_line(words: list[str], expected: str) -> None:
    assert re.search(expected, refusal(words))


def test_variables_are_validated_like_flags() -> None:
    assert refusal(["--standalone"], {"PET_NNODES": "3"}).endswith("but PET_NNODES is 3")
    assert refusal([], {"PET_NNODES": "3:2"}).startswith("PET_NNODES is '3:2'")
    assert refusal(C10D, {"PET_RDZV_CONF": "x=1"}).startswith("PET_RDZV_CONF: there is no key")


@given(st.sampled_from(keys.KNOWN), st.integers(0, 30))
def test_a_mistyped_key_is_never_taken(key: str, at: int) -> None:
    typo = key[: at % len(key)] + "q" + key[at % len(key) :]
    assert f"no key '{typo}'" in refusal([*C10D, f"--rdzv-conf={typo}=1"])


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [key for key in keys.KNOWN if f"`{key}`" not in text] == []


def test_the_handler_for_log_plug_ins_has_the_options_of_the_command() -> None:
    job = configure([*C10D, "--rdzv-conf=last_call_timeout=2,witness=w:1", "--node-rank=1"])
    assert job.rendezvous is not None
    handler = resolve.rendezvous_handler(job.rendezvous, "job", "10.0.0.7")
    own = job.rendezvous.options("job", "10.0.0.7")
    assert repr(handler.native_options) == repr(own)
    assert (handler.get_backend(), handler.get_run_id()) == ("c10d", "job")
    assert (handler.settings.min_nodes, handler.settings.max_nodes) == (2, 4)
    assert handler.settings.timeout.last_call.total_seconds() == 2
