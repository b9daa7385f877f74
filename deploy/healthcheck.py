"""Asks the service of a container for its health (grpc.health.v1). Exit status 0: it is SERVING; 1: it is not.

python healthcheck.py HOST:PORT [DIRECTORY]

With TLS where the directory holds a `ca.pem`, which says whom to trust; `certificate.pem` and `key.pem` beside it are
shown to a service that asks for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 3.0


def main(address: str, directory: str | None = None) -> None:
    """Print why it is not healthy, if it is not: `docker inspect` shows the last lines of each check."""
    with _channel(address, directory) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            sys.exit(f"{error.code()}: {error.details()}")
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _channel(address: str, directory: str | None) -> grpc.Channel:
    if directory is None or not Path(directory, "ca.pem").exists():
        return grpc.insecure_channel(address)
    ca, key, certificate = (Path(directory, name).read_bytes() for name in ("ca.pem", "key.pem", "certificate.pem"))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))


if __name__ == "__main__":
    main(*sys.argv[1:])
