"""Asks NVIDIA's health check daemon of this host.

::

    python -m elastic.checks.nvhcd unix:///var/run/nvhcd.sock [ARGUMENT]...

The arguments are those of the daemon's check (``--no-slurm`` without any). Needs the packages
grpcio and protobuf; without them, or without a reply, the verdict is unknown. The service has no
public definition file: names and fields are those that NVIDIA's nvidia-resiliency-ext uses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from elastic import _environment

EXIT_GOOD, EXIT_BAD, EXIT_UNKNOWN = 0, 1, 3
METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
DEFAULT_ARGUMENTS = ("--no-slurm",)
TIMEOUT_S = 60.0
MARGIN_S = 1.0  # to print what was found before the launcher's limit


class Unknown(Exception):
    """The daemon does not tell."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        return _say("unknown", "no socket is given: unix:///PATH")
    try:
        fault = _examine(words[0], words[1:] or DEFAULT_ARGUMENTS)
    except Unknown as why:
        return _say("unknown", str(why))
    return _say("bad", fault) if fault else _say("good", "the daemon found no fault")


def _say(verdict: str, reason: str) -> int:
    reason = " ".join(reason.split())
    print(json.dumps({"check": "nvhcd", "verdict": verdict, "reason": reason}))
    return {"good": EXIT_GOOD, "bad": EXIT_BAD}.get(verdict, EXIT_UNKNOWN)


def _examine(socket: str, arguments: Sequence[str]) -> str:
    """As examine(). Every error is Unknown: a traceback would end with 1, which means bad."""
    try:
        limit = float(_environment.inherited().get("ELASTIC_CHECK_TIMEOUT", TIMEOUT_S))
        return examine(socket, arguments, max(limit - MARGIN_S, MARGIN_S))
    except Unknown:
        raise
    except Exception as error:
        raise Unknown(f"the check failed: {type(error).__name__}: {error}") from error


def examine(socket: str, arguments: Sequence[str], limit: float) -> str:
    """What is wrong; "": nothing. ``limit``: in seconds. Raises Unknown."""
    try:
        import grpc

        request, response = messages()
    except ImportError as error:
        raise Unknown(f"{error}: pip install elastic-launch[nvhcd]") from None
    with grpc.insecure_channel(socket) as channel:
        ask = channel.unary_unary(
            METHOD,
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            reply = ask(request(args=arguments), timeout=limit)
        except grpc.RpcError as error:
            raise Unknown(f"{socket}: {error.code().name}: {error.details()}") from None
    return fault_of(reply)


def fault_of(reply: Any) -> str:
    """What the reply says is wrong; "": nothing. Raises Unknown."""
    try:
        output = json.loads(reply.output or "{}")
        count = output.get("fail_count")
        failed = ", ".join(map(str, output.get("failed_checks") or ()))
    except (ValueError, AttributeError, TypeError):
        count, failed = None, ""
    if not reply.success:
        return reply.error or failed or f"the check ended with code {reply.exit_code}"
    if not isinstance(count, int) or isinstance(count, bool):
        raise Unknown("the daemon's output has no fail_count")
    if count == 0:
        return ""
    what = "1 check failed" if count == 1 else f"{count} checks failed"
    return f"{what}: {failed}" if failed else what


def messages() -> tuple[Any, Any]:
    """The classes of the request and of the response."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="nvhcd.proto", package="nvhcd", syntax="proto3")
    fields = {
        "HealthCheckRequest": (("args", kinds.TYPE_STRING, kinds.LABEL_REPEATED),),
        "HealthCheckResponse": (
            ("success", kinds.TYPE_BOOL, kinds.LABEL_OPTIONAL),
            ("exit_code", kinds.TYPE_INT32, kinds.LABEL_OPTIONAL),
            ("output", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL),
            ("error", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL),
        ),
    }
    for name, its in fields.items():
        message = file.message_type.add(name=name)
        for number, (field, kind, label) in enumerate(its, 1):
            message.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nvhcd.{name}"))
        for name in fields
    )
    return request, response


if __name__ == "__main__":
    sys.exit(main())
