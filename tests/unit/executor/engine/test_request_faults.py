"""What one request is to blame for ends that request alone."""

from __future__ import annotations

from collections.abc import Sequence

from executor_service.engine.request import EndCause
from support.engine import EngineUnderTest, Spelling, engine_on_tokens, limits_of
from support.faulty_device import FaultyDevice
from support.three_requests import NEW, assert_served, submit_all


class Stubborn(Spelling):
    """Cannot spell the token that comes after so many."""

    def __init__(self, num_spelled: int) -> None:
        super().__init__()
        self._left = num_spelled

    def push(self, token_ids: Sequence[int]) -> str:
        self._left -= 1
        if self._left < 0:
            raise ValueError("no such token")
        return super().push(token_ids)


def test_a_detokenizer_that_raises_ends_its_request_alone() -> None:
    served = engine_on_tokens(limits_of())
    submit_all(served)
    faulty = served.submit([9], NEW, detokenizer=Stubborn(5))
    served.run()
    assert served.end(faulty).cause is EndCause.FAILED
    assert len(served.tokens(faulty)) == 5
    assert [ids for ids, _ in served.heard.failures] == [[f"request-{faulty}"]]
    assert_served(served, 1, 2, 3)
    assert served.engine.counters.num_failed == 1


def test_a_row_that_is_no_number_ends_its_request_alone() -> None:
    device = FaultyDevice(8)
    device.broken_rows = {5: 1}
    served = EngineUnderTest(limits=limits_of(), runner=device, kv=device.cache)
    submit_all(served)
    served.run()
    assert served.end(2).cause is EndCause.INVALID_LOGITS
    assert len(served.tokens(2)) == 4
    assert_served(served, 1, 3)
