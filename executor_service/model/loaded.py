"""A loaded model: all that the rest of the executor knows about where it came from and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from executor_service.kernels.cpu import CpuKernels
from executor_service.model.greedy_head import GreedyHead


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """What is known of a model's texts before its weights are loaded. ``tokenizer``: of transformers."""

    tokenizer: Any
    vocab_size: int  # logits of a row
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """`model`, `config` and `tokenizer` are objects of transformers, whose classes differ from model to model."""

    name: str
    model: Any
    config: Any
    tokenizer: Any
    dtype: torch.dtype
    device: torch.device
    max_model_len: int  # tokens, prompt and output together
    eos_token_ids: frozenset[int]  # any of them ends a text; empty if the model has none
    bos_token_id: int | None
    num_parameters: int  # of the model as published; fused modules hold them in other forms
    kernels: CpuKernels | None  # None: torch's operations alone
    greedy_head: GreedyHead | None = None  # None: all logits are computed, whatever is asked of them
