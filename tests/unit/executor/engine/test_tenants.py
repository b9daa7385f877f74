from __future__ import annotations

import numpy as np

from executor_service.engine.tenants import MAX_REMEMBERED, Tenants


def serve(tenants: Tenants, index: int, num_tokens: int) -> None:
    tenants.serve(np.array([index]), np.array([num_tokens]), np.array([0]))


def test_a_tenant_keeps_its_index_while_it_has_requests() -> None:
    tenants = Tenants()
    assert [tenants.enter(name) for name in ("a", "b", "a", "b")] == [0, 1, 0, 1]
    tenants.leave(0)
    assert tenants.enter("a") == 0


def test_names_are_never_there_twice() -> None:
    tenants = Tenants()
    indexes = [tenants.enter(name) for name in ("a", "b", "c")]
    for index in indexes:
        tenants.leave(index)
    assert tenants.enter("c") == 2, "its own index is free, and so are those before it"
    assert tenants.enter("d") == 0
    assert tenants.names == ["d", "b", "c"]


def test_one_pass_serves_several_requests_of_a_tenant() -> None:
    tenants = Tenants()
    a, b = tenants.enter("a"), tenants.enter("b")
    tenants.serve(np.array([a, b, a]), np.array([5, 1, 2]), np.array([9, 9, 9]))
    assert tenants.service.tolist() == [7, 1], "blocks are free unless a plan charges for them"


def test_blocks_held_are_charged_as_the_plan_says() -> None:
    tenants = Tenants()
    a, b = tenants.enter("a"), tenants.enter("b")
    tenants.kv_residency_charge = 0.25
    tenants.serve(np.array([a, b, a]), np.array([5, 1, 0]), np.array([4, 0, 8]))
    assert tenants.service.tolist() == [8, 1]
    tenants.leave(b)
    index = tenants.enter("b")
    assert tenants.service[index] == 8, "who comes back starts with the least served, the charge included"


def test_idling_saves_up_no_credit() -> None:
    tenants = Tenants()
    a, idler = tenants.enter("a"), tenants.enter("idler")
    serve(tenants, a, 100)
    serve(tenants, idler, 10)
    tenants.leave(idler)
    serve(tenants, a, 900)
    index = tenants.enter("idler")
    assert tenants.service[index] == 1000


def test_leaving_for_a_moment_wipes_out_no_debt() -> None:
    tenants = Tenants()
    modest, greedy = tenants.enter("modest"), tenants.enter("greedy")
    serve(tenants, modest, 10)
    serve(tenants, greedy, 500)
    tenants.leave(greedy)
    index = tenants.enter("greedy")
    assert tenants.service[index] == 500


def test_a_newcomer_starts_with_the_least_served() -> None:
    tenants = Tenants()
    a, b = tenants.enter("a"), tenants.enter("b")
    tenants.serve(np.array([a, b]), np.array([70, 30]), np.array([0, 0]))
    index = tenants.enter("new")
    assert tenants.service[index] == 30


def test_any_number_of_names_takes_bounded_memory() -> None:
    tenants = Tenants()
    for number in range(MAX_REMEMBERED + 500):
        index = tenants.enter(f"tenant-{number}")
        serve(tenants, index, 1)
        tenants.leave(index)
    assert len(tenants.names) == 1
    assert len(tenants._idle) == MAX_REMEMBERED
