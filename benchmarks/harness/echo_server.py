"""A gRPC server that does nothing: what a round trip costs whatever the service decides.

`grpc.aio` as in the scheduler service, with the same options; each message, whatever its bytes, is answered by
`--response-bytes` others. Imports nothing of the project.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

STREAM_METHOD = "/echo/Stream"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address-file", type=Path, required=True, help="file that gets host:port")
    parser.add_argument("--response-bytes", type=int, required=True, help="bytes of each answer")
    args = parser.parse_args()
    asyncio.run(_serve(args.address_file, bytes(args.response_bytes)))


async def _serve(address_file: Path, response: bytes) -> None:
    async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield response

    server = grpc.aio.server(
        options=(
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        )
    )
    _, service, method = STREAM_METHOD.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    partial = address_file.with_suffix(".partial")
    partial.write_text(f"127.0.0.1:{port}", encoding="utf-8")
    os.replace(partial, address_file)
    await server.wait_for_termination()


if __name__ == "__main__":
    main()
