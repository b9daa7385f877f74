"""Writes docs/contract.md from the comments of the `.proto` files: `python proto/tools/document.py > docs/contract.md`.

The comments are the documentation; this only puts them in an order to read, with an anchor for each element. It needs
grpcio-tools, whose compiler gives the descriptors with their comments.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    MethodOptions,
    ServiceDescriptorProto,
    SourceCodeInfo,
)
from grpc_tools import protoc

PROTO = Path(__file__).parents[1]

# Numbers of fields in descriptor.proto, which the paths of source locations are made of.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _METHODS, _VALUES = 2, 2, 2

_HEAD = """\
# The contract

Generated from the comments under `proto/` by `make gen`; change those, not this. What is promised of it, the table of
status codes and reasons, and how old and new peers get along is in [proto/README.md](../proto/README.md).
"""

Path_ = tuple[int, ...]


def main() -> None:
    """Write the document to stdout."""
    sys.stdout.write(document(descriptors(PROTO)))


def descriptors(root: Path) -> FileDescriptorSet:
    """Compile all files under `root` with their comments. Raises SystemExit where the compiler refuses one."""
    files = sorted(str(path) for path in (root / "metronome").rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.NamedTemporaryFile(suffix=".binpb") as output:
        arguments = [f"--proto_path={root}", f"--proto_path={well_known}", "--include_source_info"]
        status = protoc.main(["protoc", *arguments, f"--descriptor_set_out={output.name}", *files])
        if status:
            raise SystemExit(status)
        return FileDescriptorSet.FromString(Path(output.name).read_bytes())


def document(compiled: FileDescriptorSet) -> str:
    """All packages, each with its services, messages and enums in the order of the files."""
    packages: dict[str, list[FileDescriptorProto]] = {}
    for file in compiled.file:
        packages.setdefault(file.package, []).append(file)
    parts = [_HEAD, *(f"- [`{name}`](#{_anchor(name)})" for name in packages), ""]
    for name, files in packages.items():
        parts += [f"## {name}", ""]
        for file in sorted(files, key=lambda file: (not file.service, file.name)):
            parts += _File(file).lines()
    return "\n".join(parts).rstrip() + "\n"


class _File:
    """One file, with the comments by the path of what they belong to."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._locations = {tuple(location.path): location for location in file.source_code_info.location}

    def lines(self) -> Iterator[str]:
        for i, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, i))
        for i, message in enumerate(self._file.message_type):
            yield from self._message(message, (_MESSAGES, i))
        for i, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (_ENUMS, i))

    def _service(self, service: ServiceDescriptorProto, path: Path_) -> Iterator[str]:
        yield from self._heading(service.name, "service", path)
        for i, method in enumerate(service.method):
            yield f"#### {service.name}.{method.name}"
            yield ""
            yield _signature(method)
            yield ""
            yield from self._comment((*path, _METHODS, i))

    def _message(self, message: DescriptorProto, path: Path_) -> Iterator[str]:
        yield from self._heading(message.name, "message", path)
        for i, field in enumerate(message.field):
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._entry(field.name, f"`{_type(field)}` = {field.number}", (*path, _FIELDS, i))
                continue
            group = message.oneof_decl[field.oneof_index].name
            if i == 0 or message.field[i - 1].oneof_index != field.oneof_index or not _in_oneof(message.field[i - 1]):
                yield from self._entry(group, "one of the following", (*path, 8, field.oneof_index))
            yield from self._entry(field.name, f"`{_type(field)}` = {field.number}, of `{group}`", (*path, _FIELDS, i))
        if message.field:
            yield ""

    def _enum(self, enum: EnumDescriptorProto, path: Path_) -> Iterator[str]:
        yield from self._heading(enum.name, "enum", path)
        for i, value in enumerate(enum.value):
            yield from self._entry(value.name, f"= {value.number}", (*path, _VALUES, i))
        yield ""

    def _heading(self, name: str, kind: str, path: Path_) -> Iterator[str]:
        yield f"### {name}"
        yield ""
        yield f"*{kind} of `{self._file.name}`*"
        yield ""
        for picture in self._location(path).leading_detached_comments:
            yield from ("```", *_unindented(picture), "```", "")
        yield from self._comment(path)

    def _comment(self, path: Path_) -> Iterator[str]:
        yield from _unindented(self._location(path).leading_comments)
        yield ""

    def _entry(self, name: str, what: str, path: Path_) -> Iterator[str]:
        """A list item: the first line of the comment beside the name, the rest under it."""
        first, *rest = [*_unindented(self._location(path).leading_comments)] or [""]
        yield f"- **`{name}`** {what}: {first}"
        yield from (f"  {line}".rstrip() for line in rest)

    def _location(self, path: Path_) -> SourceCodeInfo.Location:
        return self._locations.get(path, SourceCodeInfo.Location())


def _unindented(comment: str) -> Sequence[str]:
    return [line.removeprefix(" ").rstrip() for line in comment.rstrip("\n").split("\n")] if comment else []


def _signature(method: MethodDescriptorProto) -> str:
    asks, answers = _short(method.input_type), _short(method.output_type)
    asks = f"stream {asks}" if method.client_streaming else asks
    answers = f"stream {answers}" if method.server_streaming else answers
    free = method.options.idempotency_level == MethodOptions.NO_SIDE_EFFECTS
    return f"`{method.name}({asks}) → {answers}`" + (", without side effects" if free else "")


def _type(field: FieldDescriptorProto) -> str:
    if field.type in (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM):
        name = _short(field.type_name)
        if name.endswith("Entry"):  # the message that stands for an entry of a map
            name = "map"
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.proto3_optional:
        return f"optional {name}"
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED and name != "map" else name


def _in_oneof(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional


def _short(full_name: str) -> str:
    name = full_name.removeprefix(".")
    return name if name.startswith("google.") else name.rpartition(".")[2]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    main()
