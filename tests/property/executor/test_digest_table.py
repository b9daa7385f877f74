"""The table of digests against a dict, which has no slots to run out of."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from executor_service.kv.digest_table import DIGEST_SIZE, DigestTable
from support.depth import num_examples

# Up to 32 slots: many searches begin at the same.
DIGESTS = [number.to_bytes(DIGEST_SIZE, "big") for number in range(1, 41)]


class DigestTableMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.sampled_from([1, 2, 6]))
    def start(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.table = DigestTable(num_blocks)
        self.block_of: dict[bytes, int] = {}

    @rule(random=st.randoms(use_true_random=False))
    def add(self, random: Random) -> None:
        others = [block for block in range(self.num_blocks) if block not in self.block_of.values()]
        blocks = random.sample(others, random.randint(0, len(others)))
        digests = random.choices(DIGESTS, k=len(blocks))  # some known, some twice
        expected = []
        for digest, block in zip(digests, blocks, strict=True):
            expected.append(digest not in self.block_of)
            self.block_of.setdefault(digest, block)
        assert self.table.add(digests, blocks) == expected

    @rule(random=st.randoms(use_true_random=False))
    def remove(self, random: Random) -> None:
        digests = random.sample(list(self.block_of), random.randint(0, len(self.block_of)))
        self.table.remove(np.array([self.block_of.pop(digest) for digest in digests], dtype=np.int32))

    @rule(random=st.randoms(use_true_random=False))
    def look_for_the_first(self, random: Random) -> None:
        known, unknown = list(self.block_of), [digest for digest in DIGESTS if digest not in self.block_of]
        first = random.sample(known, random.randint(0, len(known)))
        blocks = [self.block_of[digest] for digest in first]
        assert self.table.blocks_of_first([*first, random.choice(unknown), *known]) == blocks

    @invariant()
    def each_is_found_by_the_other(self) -> None:
        assert [self.table.block_of(digest) for digest in DIGESTS] == [self.block_of.get(d, -1) for d in DIGESTS]
        assert self.table.blocks().tolist() == sorted(self.block_of.values())
        assert len(self.table) == len(self.block_of)
        assert self.table.is_consistent()
        digest_of = {block: digest for digest, block in self.block_of.items()}
        every_block = np.arange(self.num_blocks, dtype=np.int32)
        digests = [digest_of.get(block, bytes(DIGEST_SIZE)) for block in every_block.tolist()]
        assert self.table.digests_of(every_block) == b"".join(digests)


TestDigestTable = DigestTableMachine.TestCase
TestDigestTable.settings = settings(max_examples=num_examples(50), stateful_step_count=40)
