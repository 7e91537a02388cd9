"""A job's record in etcd, by its v3 interface (the JSON gateway, through ``etcd3gw``).

One key holds it. It is replaced by a transaction that compares the revision at which the key
was last written. Its lease is renewed by every write, so that the key of an ended job expires.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Mapping
from typing import Any

from elastic.errors import ConfigError
from elastic.text import join_endpoints, split_endpoint
from elastic.torch_compat.rendezvous.api import (
    RendezvousBackend,
    RendezvousConnectionError,
    RendezvousStateError,
)

logger = logging.getLogger(__name__)

PORT = 2379
PREFIX = "/elastic/rendezvous"
LEASE_S = 7200
REQUEST_TIMEOUT_S = 5.0
# Of etcd's limit for a request, and of gRPC's.
_TOO_LARGE = ("request is too large", "larger than max")


class EtcdRendezvousBackend(RendezvousBackend):
    """``client`` is an ``etcd3gw.Etcd3Client``, or anything with its two methods used here."""

    def __init__(
        self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int = LEASE_S
    ) -> None:
        if not run_id:
            raise ConfigError("the run id is empty")
        self._client = client
        host = getattr(client, "host", "")
        self._place = f"etcd at {join_endpoints([(host, client.port)])}" if host else "etcd"
        self._key = encoded(f"{(key_prefix or PREFIX).rstrip('/')}/{run_id}".encode())
        self._ttl = ttl
        self._lease: Any = None
        self._renewed_at = 0.0

    @property
    def name(self) -> str:
        return "etcd"

    def get_state(self) -> tuple[bytes, int] | None:
        answer = self._ask({"success": [self._read()]})
        return state_of(answer["responses"][0])

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        if token is not None and not isinstance(token, int):
            stored = self.get_state()  # an invalid token matches no version
            return None if stored is None else (*stored, False)
        put: dict[str, Any] = {"key": self._key, "value": encoded(state)}
        put["lease"] = self._renewed_lease()
        transaction = {
            "compare": [unchanged(self._key, token or 0)],
            "success": [{"request_put": put}],
            "failure": [self._read()],
        }
        try:
            answer = self._ask(transaction)
        except RendezvousConnectionError as error:
            reply = str(getattr(error.__cause__, "detail_text", ""))
            if not any(sign in reply for sign in _TOO_LARGE):
                raise
            raise RendezvousStateError(
                f"the job's record of {len(state)} bytes is too large for etcd: start etcd with a "
                "larger --max-request-bytes, or keep the record elsewhere (--rdzv-backend)"
            ) from error
        if answer.get("succeeded"):
            return state, int(answer["header"]["revision"]), True
        stored = state_of(answer["responses"][0])
        return None if stored is None else (*stored, False)

    def _read(self) -> dict[str, Any]:
        return {"request_range": {"key": self._key}}

    def _renewed_lease(self) -> int:
        """A renewed lease; a new one if the last one has expired."""
        now = time.monotonic()
        try:
            if self._lease is None:
                self._lease, self._renewed_at = self._client.lease(self._ttl), now
            elif now > self._renewed_at + self._ttl / 4:
                if self._lease.refresh() <= 0:
                    self._lease = self._client.lease(self._ttl)
                self._renewed_at = now
        except Exception as error:
            self._lease = None
            raise RendezvousConnectionError(
                f"{self._place} granted no lease: {_reason(error)}"
            ) from error
        return int(self._lease.id)

    def _ask(self, transaction: dict[str, Any]) -> dict[str, Any]:
        return ask(self._client, transaction, self._place)


def ask(client: Any, transaction: dict[str, Any], place: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = client.transaction(transaction)
    except Exception as error:
        raise RendezvousConnectionError(f"{place} did not answer: {_reason(error)}") from error
    return answer


def unchanged(key: str, revision: int) -> dict[str, Any]:
    """The condition that a key was last written at this revision; 0: that it does not exist."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def _reason(error: BaseException) -> str:
    """The text of the first cause: the exceptions of the client's own have none, or the URL's."""
    for _ in range(10):  # a chain of causes may be a circle
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        error = cause or error
    text = getattr(error, "strerror", None) or str(error) or getattr(error, "detail_text", None)
    return str(text or type(error).__name__)


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def state_of(response: Mapping[str, Any]) -> tuple[bytes, int] | None:
    found = response["response_range"].get("kvs")
    if not found:
        return None
    return base64.b64decode(found[0].get("value", "")), int(found[0]["mod_revision"])


def create(
    name: str, endpoint: str, run_id: str, parameters: Mapping[str, Any]
) -> EtcdRendezvousBackend:
    """The backend for ``HOST[:PORT]`` with the settings of ``--rdzv-conf``."""
    client = connect(name, endpoint, parameters)
    return EtcdRendezvousBackend(client, run_id, parameters.get("etcd_prefix"))


def connect(name: str, endpoint: str, parameters: Mapping[str, Any]) -> Any:
    """A client of etcd3gw, which connects on its first request."""
    try:
        from etcd3gw.client import Etcd3Client
    except ImportError as error:
        raise ConfigError(
            f"the rendezvous backend {name} needs etcd3gw: pip install 'elastic-launch[etcd]'"
        ) from error
    if name == "etcd-v2":
        logger.warning("etcd-v2: etcd has removed its v2 interface; its v3 interface is used")
    host, port = split_endpoint(endpoint, "the rendezvous endpoint")
    return Etcd3Client(
        host=host,
        port=int(port or PORT),
        protocol=parameters.get("protocol", "http"),
        ca_cert=parameters.get("ca_cert", parameters.get("cacert")),
        cert_cert=parameters.get("ssl_cert", parameters.get("cert")),
        cert_key=parameters.get("ssl_cert_key", parameters.get("key")),
        timeout=REQUEST_TIMEOUT_S,
    )
