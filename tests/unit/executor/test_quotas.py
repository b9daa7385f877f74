"""What tenants may use: rates fill with time, answers are paid as they grow, and nobody pays for another."""

from __future__ import annotations

import pytest

from executor_service import quotas
from executor_service.quotas import OverQuotaError, Quotas, TenantLimits, parse_quotas


class Clock:
    """Goes on when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def of(clock: Clock, **limits: TenantLimits) -> Quotas:
    return Quotas(lambda: limits, clock)


def wait_of(quotas: Quotas, tenant: str) -> float | None:
    with pytest.raises(OverQuotaError) as caught:
        quotas.enter(tenant)
    assert caught.value.tenant == tenant
    return caught.value.retry_after_s


def test_a_second_holds_as_many_requests_as_its_rate_and_then_they_come_one_by_one() -> None:
    clock = Clock()
    tenants = of(clock, acme=TenantLimits(requests_per_second=4))
    for _ in range(4):
        tenants.enter("acme")
    assert wait_of(tenants, "acme") == pytest.approx(0.25)
    clock.now += 0.125
    assert wait_of(tenants, "acme") == pytest.approx(0.125)
    clock.now += 0.125
    tenants.enter("acme")
    assert wait_of(tenants, "acme") == pytest.approx(0.25)
    clock.now += 1000
    for _ in range(4):
        tenants.enter("acme")
    assert wait_of(tenants, "acme") == pytest.approx(0.25)


def test_a_rate_below_one_lets_one_in_at_a_time() -> None:
    clock = Clock()
    tenants = of(clock, acme=TenantLimits(requests_per_second=0.1))
    tenants.enter("acme")
    assert wait_of(tenants, "acme") == pytest.approx(10)
    clock.now += 10
    tenants.enter("acme")


def test_an_answer_is_paid_as_it_grows_and_what_is_owed_is_waited_for() -> None:
    clock = Clock()
    tenants = of(clock, acme=TenantLimits(tokens_per_second=100))
    tenants.take_prompt("acme", 60)
    with pytest.raises(OverQuotaError) as caught:
        tenants.take_prompt("acme", 60)
    assert (caught.value.limit, caught.value.retry_after_s) == ("tokens_per_second", pytest.approx(0.2))
    tenants.take_prompt("acme", 40)
    for _ in range(200):
        tenants.take_answer("acme", 1)
    with pytest.raises(OverQuotaError) as caught:
        tenants.take_prompt("acme", 1)
    assert caught.value.retry_after_s == pytest.approx(2.01)
    clock.now += 2.02
    tenants.take_prompt("acme", 1)


def test_a_prompt_of_more_than_a_second_holds_waits_for_a_full_bucket() -> None:
    clock = Clock()
    tenants = of(clock, acme=TenantLimits(tokens_per_second=10))
    tenants.take_prompt("acme", 50)
    clock.now += 4.9
    with pytest.raises(OverQuotaError) as caught:
        tenants.take_prompt("acme", 50)
    assert caught.value.retry_after_s == pytest.approx(0.1)
    clock.now += 0.2
    tenants.take_prompt("acme", 50)


def test_so_many_requests_at_once_until_one_leaves() -> None:
    tenants = of(Clock(), acme=TenantLimits(max_concurrent_requests=2))
    tenants.enter("acme")
    tenants.enter("acme")
    assert wait_of(tenants, "acme") is None
    tenants.leave("acme")
    tenants.enter("acme")


def test_who_is_refused_has_taken_nothing() -> None:
    clock = Clock()
    tenants = of(clock, acme=TenantLimits(requests_per_second=2, max_concurrent_requests=1))
    tenants.enter("acme")
    for _ in range(5):
        assert wait_of(tenants, "acme") is None
    tenants.leave("acme")
    tenants.enter("acme")


def test_nobody_pays_for_another_and_who_is_not_named_has_the_limits_of_others() -> None:
    tenants = of(
        Clock(),
        acme=TenantLimits(requests_per_second=1),
        free=TenantLimits(),
        **{"*": TenantLimits(requests_per_second=2)},
    )
    tenants.enter("acme")
    assert wait_of(tenants, "acme") is not None
    for _ in range(2):
        tenants.enter("somebody")
        tenants.enter("")
    assert wait_of(tenants, "somebody") is not None
    assert wait_of(tenants, "") is not None
    for _ in range(100):
        tenants.enter("free")
        tenants.take_prompt("free", 10**9)


def test_new_limits_count_at_once() -> None:
    limits = {"acme": TenantLimits(requests_per_second=1)}
    tenants = Quotas(lambda: limits, Clock())
    tenants.enter("acme")
    assert wait_of(tenants, "acme") is not None
    limits["acme"] = TenantLimits(max_concurrent_requests=2)
    tenants.enter("acme")
    assert wait_of(tenants, "acme") is None


def test_tenants_who_use_nothing_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "_MIN_REMEMBERED", 8)
    clock = Clock()
    limits = TenantLimits(requests_per_second=1, tokens_per_second=1, max_concurrent_requests=1)
    tenants = of(clock, **{"*": limits})
    tenants.enter("busy")
    for number in range(1000):
        tenants.enter(f"tenant {number}")
        tenants.leave(f"tenant {number}")
        clock.now += 2
    assert len(tenants._uses) <= 16
    assert wait_of(tenants, "busy") is None


def test_a_file_says_what_is_limited() -> None:
    text = (
        '[tenants.acme]\nrequests_per_second = 0.5\nmax_concurrent_requests = 3\n[tenants."*"]\ntokens_per_second = 9'
    )
    assert parse_quotas(text) == {
        "acme": TenantLimits(requests_per_second=0.5, max_concurrent_requests=3),
        "*": TenantLimits(tokens_per_second=9),
    }
    assert parse_quotas("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tenants", "is no TOML"),
        ("[tenant.acme]", "has 'tenant'; there is"),
        ("tenants = 1", "has a tenant that is no table"),
        ("[tenants]\nacme = 1", "has a tenant that is no table"),
        ("[tenants.acme]\nrequests = 1", "has 'requests' for tenant 'acme', which is none of max_concurrent_requests,"),
        ("[tenants.acme]\nrequests_per_second = 0", "has requests_per_second = 0 for tenant 'acme', which is no limit"),
        ("[tenants.acme]\nrequests_per_second = -1", "which is no limit"),
        ("[tenants.acme]\nrequests_per_second = inf", "which is no limit"),
        ("[tenants.acme]\nrequests_per_second = nan", "which is no limit"),
        ("[tenants.acme]\nrequests_per_second = true", "which is no limit"),
        ("[tenants.acme]\ntokens_per_second = '9'", "which is no limit"),
        ("[tenants.acme]\nmax_concurrent_requests = 1.5", "which is no limit"),
    ],
)
def test_a_file_that_nobody_understands_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_quotas(text)
    assert said in str(caught.value)
