"""Generates the TypeScript of the contract into a directory: `python clients/typescript/tools/generate.py DIRECTORY`.

Needs what `npm ci` installs. Besides the contract there are the details of errors, whose .proto files come with
googleapis-common-protos, and health checks, which come with grpcio-health-checking as descriptors alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import google.rpc.status_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_health.v1 import health_pb2

PACKAGE = Path(__file__).parents[1]
PROTO = PACKAGE.parents[1] / "proto"
PLUGIN = PACKAGE / "node_modules" / ".bin" / "protoc-gen-es"
COMMON_PROTOS = Path(google.rpc.status_pb2.__file__).parents[2]


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    contract = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "metronome").rglob("*.proto"))
    details = ["google/rpc/status.proto", "google/rpc/error_details.proto"]
    protoc(directory, f"--proto_path={PROTO}", f"--proto_path={COMMON_PROTOS}", *contract, *details)
    health = FileDescriptorSet()
    health_pb2.DESCRIPTOR.CopyToProto(health.file.add())
    with tempfile.NamedTemporaryFile() as descriptors:
        descriptors.write(health.SerializeToString())
        descriptors.flush()
        protoc(directory, f"--descriptor_set_in={descriptors.name}", health_pb2.DESCRIPTOR.name)


def protoc(directory: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-es={PLUGIN}", f"--es_out={directory}"]
    subprocess.run([*command, "--es_opt=target=ts,import_extension=js", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
