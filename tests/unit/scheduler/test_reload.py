"""Profiles that change while the service runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from scheduler_service import reload
from scheduler_service.profiles import PROFILES_DIRECTORY, load_profiles
from scheduler_service.reload import ProfileReloader, fingerprint
from scheduler_service.servicer import SchedulerServicer

PROFILE = 'description = "Small chunks."\n[policy]\nchunk_size_tokens = {}\n'


def write(directory: Path, chunk_size: int) -> None:
    (directory / "small.toml").write_text(PROFILE.format(chunk_size))


def chunk_size(servicer: SchedulerServicer) -> int:
    return servicer._profiles.default.policy.chunk_size_tokens


@pytest.fixture
def reloader(tmp_path: Path) -> ProfileReloader:
    write(tmp_path, 8)
    return ProfileReloader(SchedulerServicer(load_profiles("small", tmp_path)), "small", tmp_path)


def test_reloading_reads_the_directory_again(reloader: ProfileReloader, tmp_path: Path) -> None:
    write(tmp_path, 16)
    reloader.reload()
    assert chunk_size(reloader._servicer) == 16


@pytest.mark.parametrize("text", ["chunk", 'description = "x"\n[policy]\nchunk_size_tokens = 0\n'])
def test_a_file_that_makes_no_sense_leaves_the_profiles_as_they_are(
    reloader: ProfileReloader, tmp_path: Path, text: str
) -> None:
    (tmp_path / "odd.toml").write_text(text)
    reloader.reload()
    assert chunk_size(reloader._servicer) == 8


def test_the_default_profile_cannot_go(reloader: ProfileReloader, tmp_path: Path) -> None:
    (tmp_path / "small.toml").unlink()
    reloader.reload()
    assert chunk_size(reloader._servicer) == 8


def test_a_change_of_a_file_is_seen(reloader: ProfileReloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "POLL_SECONDS", 0.001)

    async def change_and_wait() -> None:
        running = asyncio.create_task(reloader.run())
        write(tmp_path, 4096)
        while chunk_size(reloader._servicer) != 4096:
            await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(asyncio.wait_for(change_and_wait(), 10))


def test_a_file_that_did_not_change_looks_the_same(tmp_path: Path) -> None:
    write(tmp_path, 8)
    assert fingerprint(tmp_path) == fingerprint(tmp_path)
    assert fingerprint(tmp_path / "nowhere") == ()


def test_the_built_in_profiles_are_those_of_the_design() -> None:
    assert {
        "fifo",
        "metronome",
        "orca",
        "sarathi",
        "sglang",
        "static-batching",
        "tensorrt-llm-max-utilization",
        "tensorrt-llm-no-evict",
        "vllm",
    } <= set(load_profiles().by_name)
    assert all("#" in path.read_text() for path in PROFILES_DIRECTORY.glob("*.toml") if path.stem != "fifo")
