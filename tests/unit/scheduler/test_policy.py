"""What a policy may ask for."""

from __future__ import annotations

import math
from dataclasses import fields
from enum import IntEnum

import pytest

from scheduler_service.core.errors import ErrorReason, PolicyConflictError, PolicyError
from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
    check_policy,
)


def test_the_default_policy_makes_sense() -> None:
    check_policy(Policy(), "policy")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("aging_seconds", 0.0),
        ("aging_seconds", math.inf),
        ("kv_residency_charge", -1.0),
        ("kv_residency_charge", 1e6 + 1),
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


def test_fair_is_not_an_ordering_within_a_tenant() -> None:
    with pytest.raises(PolicyConflictError, match="within one there is nobody to share with"):
        check_policy(Policy(ordering_within_tenant=Ordering.FAIR), "policy")
    check_policy(Policy(ordering=Ordering.FAIR, ordering_within_tenant=Ordering.PRIORITY), "policy")


@pytest.mark.parametrize("choices", [Admission, BatchComposition, HeadOfLine, Ordering, PrefillSharing, Victim])
def test_every_choice_makes_sense(choices: type[IntEnum]) -> None:
    setting = next(field.name for field in fields(Policy) if isinstance(getattr(Policy(), field.name), choices))
    for choice in choices:
        check_policy(Policy(**{setting: choice}), "policy")
