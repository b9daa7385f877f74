"""Channels: to one address or several, with TLS or without, and their settings, the same for every client.

Several addresses are one channel that goes round those that say SERVING by `grpc.health.v1` (round robin and health
checks are gRPC's own, by service config). Beside it each has a channel of its own, for what concerns one server; it
connects when it is used.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import grpc
from google.protobuf.duration_pb2 import Duration

from metronome_client.retry import DEFAULT_RETRY, Attempts, RetryPolicy

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""What the services accept; a table of 10,000 requests takes 0.8 MB."""

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without a word is noticed while a call is open; the services allow pings at this interval.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a ping that is under way gets a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),  # see retry.py
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in spite of its name: how long connecting may take
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

DEFAULT_TIMEOUT_S = 10.0
"""Deadline of the calls that answer at once, unless the caller gives another."""

ANSWER_TIMEOUT_S = 600.0
"""Deadline of `generate` and `drain`, unless the caller gives another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How to trust a server, and what to show it: PEM, as bytes.

    `root_certificates`: None for those that gRPC trusts. `certificate_chain` and `private_key` are for servers that
    want mutual TLS. `server_name`: whose certificate it must be, where that is not the name in the address.
    """

    root_certificates: bytes | None = None
    certificate_chain: bytes | None = None
    private_key: bytes | None = None
    server_name: str = ""

    def credentials(self, token: str = "") -> grpc.ChannelCredentials:
        """As gRPC takes them. `token`: sent with each call."""
        tls = grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)
        if not token:
            return tls
        return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where and how to connect. `token`: sent with each call, over TLS alone."""

    addresses: tuple[str, ...]
    service: str
    tls: Tls | None = None
    token: str = ""
    retry: RetryPolicy = DEFAULT_RETRY
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def target(self) -> str:
        """As gRPC takes it. Raises OSError where one of several names cannot be looked up."""
        return self.addresses[0] if len(self.addresses) == 1 else _numeric_target(self.addresses)

    @property
    def options(self) -> tuple[tuple[str, int | str], ...]:
        """Options of the channel."""
        options = list(CHANNEL_OPTIONS)
        if len(self.addresses) > 1:
            config = {
                "loadBalancingConfig": [{"round_robin": {}}],
                "healthCheckConfig": {"serviceName": self.service},
            }
            options.append(("grpc.service_config", json.dumps(config)))
        if self.tls is not None and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
            options.append(("grpc.default_authority", self.tls.server_name))
        return tuple(options)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """None: no TLS."""
        return None if self.tls is None else self.tls.credentials(self.token)

    def alone(self) -> dict[str, Connection]:
        """A connection to each address, for what concerns one server."""
        return {address: replace(self, addresses=(address,)) for address in self.addresses}

    def named(self, address: str | None) -> str:
        """The address itself, or the only one there is. Raises ValueError where it is none, or not said which."""
        if address is None and len(self.addresses) == 1:
            return self.addresses[0]
        if address not in self.addresses:
            raise ValueError(f"this concerns one server: `address` must be one of {', '.join(self.addresses)}")
        return address

    def attempts(self, timeout_s: float | None, default_s: float | None = None) -> Attempts:
        """The tries of a call. `timeout_s` None: the client's own for calls that answer at once, or `default_s`."""
        if timeout_s is None:
            timeout_s = self.timeout_s if default_s is None else default_s
        return Attempts(self.retry, timeout_s, several_addresses=len(self.addresses) > 1)

    def open(self) -> grpc.Channel:
        """A channel for threads."""
        if self.credentials is None:
            return grpc.insecure_channel(self.target, options=self.options)
        return grpc.secure_channel(self.target, self.credentials, options=self.options)

    def open_async(self) -> grpc.aio.Channel:
        """A channel for the event loop that runs."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, options=self.options)
        return grpc.aio.secure_channel(self.target, self.credentials, options=self.options)


def connection(
    addresses: str | Sequence[str],
    service: str,
    *,
    tls: Tls | None = None,
    token: str = "",
    retry: RetryPolicy = DEFAULT_RETRY,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Connection:
    """Check the settings of a client. Raises ValueError where they make no sense together."""
    found = (addresses,) if isinstance(addresses, str) else tuple(dict.fromkeys(addresses))
    if not found or "" in found:
        raise ValueError("a client needs an address, as host:port")
    if token and tls is None:
        raise ValueError("a token is sent over TLS alone, where nobody else can read it")
    names = {address.rpartition(":")[0] for address in found}
    if tls is not None and not tls.server_name and len(names) > 1:
        raise ValueError("several addresses share one channel, and with TLS one name: give Tls.server_name")
    if tls is not None and not tls.server_name and len(found) > 1:
        tls = Tls(
            root_certificates=tls.root_certificates,
            certificate_chain=tls.certificate_chain,
            private_key=tls.private_key,
            server_name=names.pop().strip("[]"),
        )
    return Connection(addresses=found, service=service, tls=tls, token=token, retry=retry, timeout_s=timeout_s)


def _numeric_target(addresses: Sequence[str]) -> str:
    """All addresses as one target; names are looked up now, since gRPC takes several by number alone."""
    numeric: dict[str, None] = {}
    family = socket.AF_INET
    for address in addresses:
        host, _, port = address.rpartition(":")
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family = found[0][0]
        for kind, _, _, _, place in found:
            if kind == family:
                number = str(place[0])
                numeric[f"[{number}]:{port}" if ":" in number else f"{number}:{port}"] = None
    return f"ipv6:{','.join(numeric)}" if family == socket.AF_INET6 else f"ipv4:{','.join(numeric)}"


def duration(interval_s: float) -> Duration:
    """Seconds as the contract's duration."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=interval_s))
    return message
