"""Files of a recording: what is written comes back, whatever happened to the process, and the disk does not fill up."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from metronome.scheduler.v1 import record_pb2
from metronome_client import RecordingError, TruncatedRecordingError, read_recording
from service_shell import recording_file
from service_shell.recording_file import RotatingFile
from support.recordings import record_of, recorded_files, records_in, settings_of, write_recording


def read_until_cut(content: bytes) -> tuple[list[record_pb2.PlanRecord], str]:
    """The whole records of a file that was cut, and what is said of it."""
    given: list[record_pb2.PlanRecord] = []
    try:
        for record in read_recording(io.BytesIO(content)):
            given.append(record)
    except TruncatedRecordingError as error:
        return given, str(error)
    raise AssertionError("nobody saw that it was cut")


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = [record_of(iteration) for iteration in range(1, 20)]
    assert records_in(write_recording(tmp_path, records)) == records


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    (one,) = write_recording(tmp_path / "one", [record_of(1)])
    (other,) = write_recording(tmp_path / "other", [record_of(1)])
    assert one.read_bytes() == other.read_bytes()


def test_a_record_is_its_length_as_a_varint_and_its_bytes(tmp_path: Path) -> None:
    (path,) = write_recording(tmp_path, [record_of(1)])
    payload = record_of(1).SerializeToString()
    assert 128 <= len(payload) < 16384
    assert gzip.decompress(path.read_bytes()) == bytes([len(payload) & 0x7F | 0x80, len(payload) >> 7]) + payload


def test_a_file_that_was_cut_anywhere_gives_its_whole_records_and_says_that_it_was_cut(tmp_path: Path) -> None:
    records = [record_of(iteration) for iteration in range(1, 4)]
    (path,) = write_recording(tmp_path, records)
    content = path.read_bytes()
    numbers = []
    for length in range(2, len(content)):
        given, said = read_until_cut(content[:length])
        assert given == records[: len(given)]
        assert f"{len(given)} whole records" in said
        numbers.append(len(given))
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2, 3}


def test_every_record_is_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    file = RotatingFile(settings_of(tmp_path))
    for iteration in (1, 2):
        file.write(record_of(iteration))
        (path,) = recorded_files(tmp_path)
        read = read_recording(io.BytesIO(path.read_bytes()))
        assert [next(read) for _ in range(iteration)][-1] == record_of(iteration)
    file.close()


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"\xff" * 20), gzip.compress(b"\x02\xff\xff")],
    ids=["no gzip", "no length", "no message"],
)
def test_what_is_no_recording_is_an_error(content: bytes) -> None:
    with pytest.raises(RecordingError, match="no recording"):
        list(read_recording(io.BytesIO(content)))


def test_a_damaged_recording_gives_what_comes_before_the_damage(tmp_path: Path) -> None:
    (path,) = write_recording(tmp_path, [record_of(1)])
    content = gzip.decompress(path.read_bytes()) + b"\x02\xff\xff"
    read = read_recording(io.BytesIO(gzip.compress(content)))
    assert next(read) == record_of(1)
    with pytest.raises(RecordingError, match="damaged after 1 records"):
        next(read)


def test_an_empty_file_holds_no_record() -> None:
    assert list(read_recording(io.BytesIO())) == []


def test_a_file_ends_with_the_record_that_reaches_the_size(tmp_path: Path) -> None:
    records = [record_of(iteration) for iteration in range(1, 31)]
    max_file_bytes, max_record_bytes = 250, 2 * record_of(1).ByteSize()
    paths = write_recording(tmp_path, records, max_file_bytes=max_file_bytes, max_files=100)
    assert len(paths) > 2
    assert [path.name for path in paths[:2]] == ["recording-000001.pb.gz", "recording-000002.pb.gz"]
    assert all(path.stat().st_size < max_file_bytes + max_record_bytes for path in paths)
    assert records_in(paths) == records


def test_the_oldest_files_make_room(tmp_path: Path) -> None:
    records = [record_of(iteration) for iteration in range(1, 8)]
    paths = write_recording(tmp_path, records, max_file_bytes=1, max_files=3)
    assert [path.name for path in paths] == [f"recording-{number:06}.pb.gz" for number in (5, 6, 7)]
    assert records_in(paths) == records[-3:]


def test_a_new_process_goes_on_with_the_next_number(tmp_path: Path) -> None:
    (tmp_path / "recording-notes.pb.gz").touch()
    write_recording(tmp_path, [record_of(1)])
    write_recording(tmp_path, [record_of(2)])
    paths = [path for path in recorded_files(tmp_path) if path.name != "recording-notes.pb.gz"]
    assert [path.name for path in paths] == ["recording-000001.pb.gz", "recording-000002.pb.gz"]
    assert records_in(paths) == [record_of(1), record_of(2)]


def test_a_directory_that_cannot_be_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(recording_file.RecordingError, match="choose another directory with --record-dir"):
        RotatingFile(settings_of(tmp_path / "file" / "below"))
