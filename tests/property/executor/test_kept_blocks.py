"""The queue of kept blocks against an ordered dict, which has no places to run out of."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from executor_service.kv.kept_blocks import Blocks, KeptBlocks
from support.depth import num_examples


def as_ids(blocks: list[int]) -> Blocks:
    return np.array(blocks, dtype=np.int32)


class KeptBlocksMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.sampled_from([1, 2, 7, 600]))  # also more than are looked at in one go
    def start(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.kept = KeptBlocks(num_blocks)
        self.expected: OrderedDict[int, None] = OrderedDict()

    @rule(random=st.randoms(use_true_random=False))
    def append(self, random: Random) -> None:
        others = [block for block in range(self.num_blocks) if block not in self.expected]
        blocks = random.sample(others, random.randint(0, len(others)))
        self.kept.append(as_ids(blocks))
        self.expected.update((block, None) for block in blocks)

    @rule(random=st.randoms(use_true_random=False))
    def remove(self, random: Random) -> None:
        blocks = random.sample(list(self.expected), random.randint(0, len(self.expected)))
        self.kept.remove(as_ids(blocks))
        for block in blocks:
            del self.expected[block]

    @rule(random=st.randoms(use_true_random=False))
    def take_first(self, random: Random) -> None:
        count = random.randint(0, len(self.expected))
        expected = [self.expected.popitem(last=False)[0] for _ in range(count)]
        assert self.kept.take_first(count).tolist() == expected

    @invariant()
    def the_order_is_that_of_an_ordered_dict(self) -> None:
        assert self.kept.in_order().tolist() == list(self.expected)
        assert len(self.kept) == len(self.expected)


TestKeptBlocks = KeptBlocksMachine.TestCase
TestKeptBlocks.settings = settings(max_examples=num_examples(50), stateful_step_count=40)
