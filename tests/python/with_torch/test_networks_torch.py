"""gloo between hosts with two networks."""

from __future__ import annotations

import socket
import sys

import pytest
from elastic.text import is_loopback

from support.launching import shell_job
from support.networks import hosts_of_two_networks
from support.paths import EXAMPLES

SUM = f"echo $MASTER_ADDR $GLOO_SOCKET_IFNAME; exec {sys.executable} {EXAMPLES}/all_reduce.py"


def test_ranks_of_two_hosts_meet_in_the_network_that_was_given() -> None:
    """The rendezvous is in the first network; gloo finds the second one by the variables alone."""
    with hosts_of_two_networks() as hosts, shell_job(f"{hosts[1].address}:29400", "2", SUM) as job:
        job.start("--subnet=10.78.0.0/24", "--node-rank=0", on=hosts[0].command)
        job.start("--iface=data0", "--node-rank=1", on=hosts[1].command)
        done = job.succeed()
    for rank, node in enumerate(done):
        assert node.stdout == f"10.78.0.1 data0\nrank {rank} of 2: sum 1\n"


def test_ranks_meet_although_the_host_name_is_a_loopback_address() -> None:
    """As Debian has it. gloo alone gives the other host an address that it cannot reach."""
    if not is_loopback(socket.gethostbyname(socket.gethostname())):
        pytest.skip("the name of this host is an address of its network")
    with hosts_of_two_networks() as hosts, shell_job(f"{hosts[0].address}:29400", "2", SUM) as job:
        job.start("--node-rank=0", on=hosts[0].command)
        job.start("--node-rank=1", "--local-addr=10.77.0.2", on=hosts[1].command)
        done = job.succeed()
    for rank, node in enumerate(done):
        assert node.stdout == f"{hosts[0].address} eth0\nrank {rank} of 2: sum 1\n"
