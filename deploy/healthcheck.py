"""Asks the service of a container for its health (grpc.health.v1). Exit status 0: it is SERVING; 1: it is not.

python healthcheck.py HOST:PORT
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_S = 3.0


def main() -> None:
    """Print why it is not healthy, if it is not: `docker inspect` shows the last lines of each check."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            sys.exit(str(error.code()))
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        sys.exit(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    main()
