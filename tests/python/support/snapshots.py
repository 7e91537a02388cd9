"""Snapshots of jobs that do not exist, for views of large jobs."""

from __future__ import annotations

from typing import Any

TIME = 1e9
PER_NODE = 8


def snapshot(ranks: int, **more: Any) -> dict[str, Any]:
    """A job in its second round, which has run for an hour, with at most eight ranks on a node."""
    nodes = -(-ranks // PER_NODE)
    per_node = ranks // nodes
    size = {"nodes": nodes, "world_size": ranks}
    rounds: list[dict[str, Any]] = [
        {
            "round": 0, "formed": TIME - 7200, "first_step": TIME - 7150, "ended": TIME - 3700,
            "cause": "worker_failed", "reason": f"rank 1 on {_name(0)} exited with code 1",
            "rank": 1, "node": _name(0), "exit_code": 1, "restarts": 0,
            "rule": None,
            "phases": {"detect": 0.002, "stop": 4.1, "rendezvous": 0.001, "first_step": 50.0},
        },
        {
            "round": 1, "formed": TIME - 3650, "first_step": TIME - 3600, "ended": None,
            "cause": None, "reason": "", "rank": None, "node": None, "exit_code": None,
            "restarts": 1, "rule": None,
            "phases": {"detect": None, "stop": None, "rendezvous": None, "first_step": None},
        },
    ]  # fmt: skip
    return {
        "schema": 1, "job": "large", "time": TIME, "phase": "running",
        "description": f"round 1 runs on {nodes} nodes",
        "coordinator": {"incarnation": "1", "term": 1, "node": _name(0), "lineage": None,
                        "address": "10.0.0.1:29400", "voters": []},
        "settings": {"min_nodes": 1, "max_nodes": nodes, "max_restarts": 3, "node_timeout": 5.0},
        "round": 1, "nodes_in_round": nodes, "world_size": ranks, "master_addr": "10.0.0.1",
        "master_port": 40000, "generation": 1, "restarts": 1, "membership_changes": 0,
        "waiting_nodes": 0, "spare_nodes": 0, "began": TIME - 7200, "running_seconds": 7050.0,
        "goodput": 0.979, "rounds": [one | size for one in rounds], "stragglers": [], "hang": None,
        "saved": None,
        "stall": None,
        "mismatch": None, "excluded": [], "findings": [],
        "progress": {"step": 83412, "slowest_step": 83411, "ranks": ranks, "step_seconds": 0.322},
        "result": None, "nodes": [_node(number, per_node) for number in range(nodes)],
    } | more  # fmt: skip


def _name(number: int) -> str:
    return f"gpu-node-{number:04}_{700 + number}"


def _node(number: int, workers: int) -> dict[str, Any]:
    return {
        "name": _name(number), "host": f"gpu-node-{number:04}", "address": f"10.0.0.{number}",
        "role": "default", "rank": number, "state": "working", "connected": True,
        "hosts_coordinator": number == 0, "last_beat_seconds": 0.3, "local_world_size": workers,
        "workers_round": 1,
        "workers": [
            {"local_rank": local, "rank": number * workers + local, "pid": 1000 + local,
             "state": "running", "exit_code": None}
            for local in range(workers)
        ],
    }  # fmt: skip
