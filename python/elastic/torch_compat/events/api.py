"""The events and their JSON form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):
    AGENT = "AGENT"
    WORKER = "WORKER"


class NodeState(str, Enum):
    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class _Serializable:
    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        return json.dumps(asdict(self))  # type: ignore[call-overload]


@dataclass
class Event(_Serializable):
    """Something that happened in a job; ``timestamp`` is in milliseconds."""

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        if isinstance(data, Event):
            return data
        fields = json.loads(data)
        fields["source"] = EventSource[fields["source"]]
        return Event(**fields)


@dataclass
class RdzvEvent(_Serializable):
    """Something that a node did in a rendezvous."""

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        if isinstance(data, RdzvEvent):
            return data
        fields = json.loads(data)
        fields["node_state"] = NodeState[fields["node_state"]]
        return RdzvEvent(**fields)
