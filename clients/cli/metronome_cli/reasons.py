"""The scheduler's reasons in words."""

from __future__ import annotations

from collections.abc import Mapping

from metronome.scheduler.v1 import plan_pb2

_WORDS: Mapping[int, str] = {
    plan_pb2.REASON_DECODE: "its next token",
    plan_pb2.REASON_PREFILL: "the rest of its prompt",
    plan_pb2.REASON_PREFILL_CHUNK_SIZE: "a chunk, cut by the chunk size",
    plan_pb2.REASON_PREFILL_TOKEN_BUDGET: "a chunk, cut by the token budget",
    plan_pb2.REASON_ADMITTED: "first in order, and it fits",
    plan_pb2.REASON_READMITTED: "comes back after an eviction",
    plan_pb2.REASON_BACKFILLED: "does not delay the head of the line",
    plan_pb2.REASON_RESUMED: "fits again",
    plan_pb2.REASON_SKIPPED_AHEAD: "fits, where those before it do not",
    plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS: "blocks ran out",
    plan_pb2.REASON_EVICTED_FOR_PRIORITY: "more important work needs its room",
    plan_pb2.REASON_WAITING_FOR_BLOCKS: "waits for blocks",
    plan_pb2.REASON_WAITING_FOR_SEQS: "waits for a place in the running set",
    plan_pb2.REASON_WAITING_FOR_TOKEN_BUDGET: "waits: the token budget is used up",
    plan_pb2.REASON_WAITING_BEHIND: "waits behind another",
    plan_pb2.REASON_WAITING_AFTER_EVICTION: "waits: blocks ran out in this pass",
    plan_pb2.REASON_WAITING_FOR_KV: "waits for its KV to arrive",
    plan_pb2.REASON_WAITING_DRAINING: "every executor drains or is excluded",
    plan_pb2.REASON_WAITING_FOR_SHARED_PREFIX: "waits for a prefix that another computes",
    plan_pb2.REASON_WAITING_FOR_PREFILL_SLOT: "waits: enough prefills are in progress",
    plan_pb2.REASON_WAITING_FOR_PHASE: "waits: the pass belongs to the other phase",
    plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS: "can never fit the cache",
    plan_pb2.REASON_REJECTED_EXCEEDS_MODEL_LEN: "longer than the model takes",
    plan_pb2.REASON_REJECTED_QUEUE_FULL: "the queue is full",
    plan_pb2.REASON_REJECTED_TENANT_QUEUE_FULL: "its tenant's share of the queue is full",
    plan_pb2.REASON_REJECTED_DEADLINE: "its deadline cannot be met",
}

_UNITS: Mapping[int, str] = {
    plan_pb2.REASON_WAITING_FOR_BLOCKS: "block",
    plan_pb2.REASON_WAITING_FOR_SEQS: "place",
    plan_pb2.REASON_WAITING_FOR_TOKEN_BUDGET: "token",
    plan_pb2.REASON_WAITING_FOR_PREFILL_SLOT: "prefill",
    plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS: "block",
    plan_pb2.REASON_REJECTED_EXCEEDS_MODEL_LEN: "token",
    plan_pb2.REASON_REJECTED_QUEUE_FULL: "place",
    plan_pb2.REASON_REJECTED_TENANT_QUEUE_FULL: "place",
    plan_pb2.REASON_REJECTED_DEADLINE: "µs",
}


_PASSING = (plan_pb2.REASON_BACKFILLED, plan_pb2.REASON_SKIPPED_AHEAD)


def reason_in_words(reason: int) -> str:
    """Say why, in a few words; a reason of a later contract as its number."""
    return _WORDS.get(reason, f"reason {reason}")


def shortage_in_words(reason: int, needed: int, available: int) -> str:
    """Say "needs 14 blocks, 9 free"; empty for a reason that counts nothing."""
    if reason in _PASSING and needed > 0:
        return f"passes {needed:,} that wait"
    unit = _UNITS.get(reason)
    if unit is None:
        return ""
    plural = unit if needed == 1 or unit == "µs" else f"{unit}s"
    there_is = "at most" if reason >= plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS else ""
    return f"needs {needed:,} {plural}, {there_is} {available:,}".replace(",  ", ", ") + ("" if there_is else " free")
