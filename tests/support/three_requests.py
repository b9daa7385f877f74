"""Three requests whose tokens are known, for tests of what must not keep others from being served."""

from __future__ import annotations

from support.engine import EngineUnderTest
from support.token_runner import true_tokens

PROMPT_OF = {1: [1, 2, 3], 2: [4, 5, 6, 7], 3: list(range(30))}
NEW = 20


def submit_all(served: EngineUnderTest) -> None:
    for request_id, prompt in PROMPT_OF.items():
        assert served.submit(prompt, NEW) == request_id


def assert_served(served: EngineUnderTest, *request_ids: int) -> None:
    for request_id in request_ids:
        assert served.tokens(request_id) == true_tokens(PROMPT_OF[request_id], NEW)
        assert served.finish(request_id).usage.num_output_tokens == NEW
