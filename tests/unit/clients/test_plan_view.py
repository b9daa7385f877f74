"""The readable plan: every list, every reason in words, the shortage with its figures."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from metronome.scheduler.v1 import plan_pb2
from metronome_cli.plan_view import composition_in_words, plan_view, shortfall_in_words
from metronome_cli.reasons import reason_in_words, shortage_in_words


def shown(plan: plan_pb2.ExecutorPlan) -> list[list[str]]:
    output = io.StringIO()
    Console(file=output, width=120).print(plan_view(plan))
    return [line.split() for line in output.getvalue().splitlines()]


def test_every_reason_of_the_contract_has_words():
    reasons = [value.number for value in plan_pb2.Reason.DESCRIPTOR.values if value.number]

    assert all(not reason_in_words(reason).startswith("reason ") for reason in reasons)
    assert reason_in_words(9999) == "reason 9999"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (plan_pb2.REASON_WAITING_FOR_BLOCKS, "needs 14 blocks, 9 free"),
        (plan_pb2.REASON_WAITING_FOR_SEQS, "needs 14 places, 9 free"),
        (plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS, "needs 14 blocks, at most 9"),
        (plan_pb2.REASON_SKIPPED_AHEAD, "passes 14 that wait"),
        (plan_pb2.REASON_DECODE, ""),
    ],
)
def test_a_shortage_names_what_it_counts(reason, words):
    assert shortage_in_words(reason, 14, 9) == words


def test_the_shortfall_is_a_sentence():
    blocks = plan_pb2.Shortfall(id=7, reason=plan_pb2.REASON_WAITING_FOR_BLOCKS, needed=1, available=0)
    loading = plan_pb2.Shortfall(id=7, reason=plan_pb2.REASON_WAITING_FOR_KV)

    assert shortfall_in_words(blocks) == "request 7 needs 1 block, 0 free"
    assert shortfall_in_words(loading) == "request 7 waits for its KV to arrive"


def test_the_composition_is_a_sentence():
    plan = plan_pb2.ExecutorPlan(
        composition=plan_pb2.PassComposition(
            num_prefill_tokens=1512, num_prefill_requests=2, num_decode_tokens=1, num_decode_requests=1
        ),
        predicted_time_us=412_300,
    )

    words = "1,512 prefill tokens of 2 requests, 1 decode token of 1 request; about 412.3 ms"
    assert composition_in_words(plan) == words
    assert composition_in_words(plan_pb2.ExecutorPlan()) == "nothing runs"


def test_one_that_passes_others_says_how_many():
    plan = plan_pb2.ExecutorPlan(
        admit=plan_pb2.TransitionTable(id=[4], reason=[plan_pb2.REASON_BACKFILLED]),
        explanations=plan_pb2.ExplanationTable(
            id=[3, 4], reason=[plan_pb2.REASON_WAITING_FOR_BLOCKS, plan_pb2.REASON_BACKFILLED], needed=[9, 2]
        ),
    )

    words = "admit 4 passes 2 that wait does not delay the head of the line"
    assert words in [" ".join(line) for line in shown(plan)]


def test_each_list_of_the_plan_is_shown():
    plan = plan_pb2.ExecutorPlan(
        executor_id="example",
        iteration=3,
        scheduled=plan_pb2.ScheduledTable(id=[4], num_tokens=[512], reason=[plan_pb2.REASON_PREFILL_CHUNK_SIZE]),
        admit=plan_pb2.TransitionTable(id=[4], reason=[plan_pb2.REASON_ADMITTED]),
        resume=plan_pb2.TransitionTable(id=[5], reason=[plan_pb2.REASON_RESUMED]),
        evict=plan_pb2.EvictTable(
            id=[6], mode=[plan_pb2.EVICT_MODE_SWAP], reason=[plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS]
        ),
        reject=plan_pb2.RejectTable(id=[7], reason=[plan_pb2.REASON_REJECTED_QUEUE_FULL]),
        explanations=plan_pb2.ExplanationTable(
            id=[4, 8], reason=[plan_pb2.REASON_DECODE, plan_pb2.REASON_WAITING_BEHIND], behind_id=[0, 4]
        ),
        digest=-1,
    )

    lines = shown(plan)

    assert [line[:2] for line in lines[2:8]] == [
        ["reject", "7"],
        ["evict", "6"],
        ["resume", "5"],
        ["admit", "4"],
        ["run", "4"],
        ["wait", "8"],
    ]
    assert "behind request 4" in " ".join(lines[7])
    assert lines[-1] == ["digest", "f" * 16]
