"""The output head for tokens that are the largest logits of their rows: those alone are computed of all logits.

The logits of a pass over 64 requests are 33 MB for a vocabulary of 262,144, written once and read once. Most requests
want one number of them: the kernel keeps the largest while it multiplies. Its sums do not depend on who shares a pass.

The weight is packed where it lies. Where it is the table of embeddings too, these are looked up in what was packed.
Where the processor multiplies numbers of 8 bits it is kept in these too, half as large again: they tell which logits
can be the largest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from executor_service.huge_pages import ask_for_huge_pages
from executor_service.kernels.products import PackedWeight, Products, Screen
from executor_service.model.fused_parts import PanelEmbedding, PanelLinear


class GreedyHead:
    """The head of a causal model whose logits are its products with the last hidden states and nothing else."""

    def __init__(self, packed: PackedWeight, screen: Screen | None, products: Products) -> None:
        self._packed = packed
        self._screen = screen
        self._products = products

    @classmethod
    def take_over(cls, model: Any, products: Products | None) -> GreedyHead | None:
        """Pack the head of a model in place, and put modules that know of it where the model reads it.

        None, and all is as it was, where the kernel cannot compute the head or the model does more to its logits than
        that.
        """
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if products is None or type(head) is not nn.Linear or head.bias is not None:
            return None
        if not products.can_pack_in_place(head.weight) or not _logits_are_products(model, head):
            return None
        embedding = model.get_input_embeddings()
        is_table = embedding.weight.data_ptr() == head.weight.data_ptr()
        if is_table and not isinstance(embedding, nn.Embedding):
            return None
        ask_for_huge_pages(head.weight, is_filled=True)
        packed = products.pack_in_place(head.weight.detach())
        if is_table:
            model.set_input_embeddings(PanelEmbedding(embedding, packed, products))
        model.set_output_embeddings(PanelLinear(packed, None, products))
        return cls(packed, products.screen(packed), products)

    def largest(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """states [S, hidden]. Ids and values [S] of the largest logits, as `argmax_rows` gives them of all logits."""
        return self._products.largest_logits(states, self._packed, self._screen)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """states [S, hidden]. All logits [S, V]."""
        return self._products.linear(states, self._packed, None)


def _logits_are_products(model: Any, head: nn.Linear) -> bool:
    """Whether the model gives the head's products of the last hidden states as they are: tried with random ones."""
    decoder, states = model.base_model, _sample(head)
    if decoder is model:
        return False
    decoder.forward = lambda *args, **kwargs: _Output(states)
    try:
        logits: torch.Tensor = model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False).logits
        return torch.equal(logits, head(states))
    except Exception:  # it wants more of its decoder than hidden states, so it does more with them
        return False
    finally:
        del decoder.forward


def _sample(head: nn.Linear) -> torch.Tensor:
    states = torch.randn(1, 2, head.in_features, generator=torch.Generator().manual_seed(0))
    return states.to(head.weight.dtype)


class _Output:
    """What a decoder returns, as far as a head that does nothing else looks at it."""

    hidden_states = attentions = cache = past_key_values = None

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]
