"""A cache of one block serves whoever fits into it, one after the other."""

from __future__ import annotations

import pytest

from executor_service.engine.limits import ExceedsKVCacheError
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause
from executor_service.kv.prefix_cache import PrefixScope
from support.engine import engine_on_tokens, limits_of
from support.planners import RECOMPUTE, SWAP, LocalPlanner
from support.token_runner import true_tokens


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("scope", [PrefixScope.TENANT, PrefixScope.OFF])
@pytest.mark.parametrize("num_swap_blocks", [0, 1])
def test_a_cache_of_one_block_serves_one_after_the_other(
    num_swap_blocks: int, scope: PrefixScope, overlap: Overlap
) -> None:
    limits = limits_of(num_blocks=1, num_swap_blocks=num_swap_blocks)
    planner = LocalPlanner(SWAP if num_swap_blocks else RECOMPUTE)
    served = engine_on_tokens(limits, planner=planner, prefix_scope=scope, overlap=overlap)
    prompts = {served.submit([number] * 10, 7): [number] * 10 for number in range(3)}
    prompts |= dict.fromkeys(served.submit_samples([5] * 9, 8, 3), [5] * 9)
    served.run()
    for request_id, prompt in prompts.items():
        assert served.tokens(request_id) == true_tokens(prompt, 17 - len(prompt))
    assert served.engine.counters.num_refused_plans == 0


def test_what_does_not_fit_one_block_is_refused_and_the_next_is_served() -> None:
    limits = limits_of(num_blocks=1)
    with pytest.raises(ExceedsKVCacheError):
        limits.max_output_tokens(num_prompt_tokens=10, requested=8)
    served = engine_on_tokens(limits)
    too_long, fits = served.submit([1] * 10, 8), served.submit([2] * 16, 1)
    served.run()
    assert served.end(too_long).cause is EndCause.REJECTED
    assert served.tokens(fits) == true_tokens([2] * 16, 1)
