"""What a policy may ask for."""

from __future__ import annotations

import math
from dataclasses import fields
from enum import IntEnum

import pytest

from scheduler_service.core.errors import ErrorReason, PolicyConflictError, PolicyError, UnsupportedPolicyError
from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
    check_offered,
    check_policy,
)


def test_the_default_policy_is_offered() -> None:
    check_policy(Policy(), "policy")
    check_offered(Policy(), "policy")


@pytest.mark.parametrize(("setting", "value"), [("hold_for_shared_prefix", True), ("kv_residency_charge", 0.5)])
def test_what_is_not_built_yet_is_said_to_be(setting: str, value: object) -> None:
    policy = Policy(**{setting: value})
    check_policy(policy, "policy")
    with pytest.raises(UnsupportedPolicyError) as caught:
        check_offered(policy, "policy")
    assert caught.value.field == f"policy.{setting}"
    assert caught.value.reason is ErrorReason.NOT_OFFERED


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("aging_seconds", 0.0),
        ("aging_seconds", math.inf),
        ("kv_residency_charge", -1.0),
        ("watermark", 1.5),
        ("watermark", math.nan),
        ("chunk_size_tokens", 0),
        ("max_num_partial_prefills", 0),
        ("max_times_overtaken", -1),
    ],
)
def test_a_setting_out_of_its_range_is_refused(setting: str, value: float) -> None:
    with pytest.raises(PolicyError) as caught:
        check_policy(Policy(**{setting: value}), "policy")
    assert (caught.value.field, caught.value.reason) == (f"policy.{setting}", ErrorReason.OUT_OF_RANGE)


def test_never_evicting_needs_a_reserve() -> None:
    with pytest.raises(PolicyConflictError):
        check_policy(Policy(preemption=Preemption.NEVER), "policy")
    check_policy(Policy(preemption=Preemption.NEVER, admission=Admission.RESERVE), "policy")


def test_evicting_for_priority_needs_an_order_by_priority() -> None:
    with pytest.raises(PolicyConflictError):
        check_policy(Policy(preemption=Preemption.FOR_PRIORITY), "policy")
    check_policy(Policy(preemption=Preemption.FOR_PRIORITY, ordering=Ordering.PRIORITY), "policy")


@pytest.mark.parametrize("choices", [Admission, BatchComposition, HeadOfLine, Ordering, PrefillSharing, Victim])
def test_every_choice_is_offered(choices: type[IntEnum]) -> None:
    (setting,) = [field.name for field in fields(Policy) if isinstance(getattr(Policy(), field.name), choices)]
    for choice in choices:
        check_policy(Policy(**{setting: choice}), "policy")
        check_offered(Policy(**{setting: choice}), "policy")
