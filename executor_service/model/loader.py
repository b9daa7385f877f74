"""From what a user named to a model that is ready to run, by way of a directory of safetensors.

transformers brings configuration, tokenizer, weights and module code; its import takes over a second, so it is imported
where it is used. Every failure is a ModelSourceError.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from executor_service.heap import give_back_freed_memory
from executor_service.kernels.build import KernelBuildError
from executor_service.kernels.choice import KernelChoice
from executor_service.kernels.cpu import CpuKernels
from executor_service.kernels.load import has_products, load_kernels
from executor_service.model.attention import ATTN_IMPLEMENTATION, register_paged_attention
from executor_service.model.dtypes import resolve_dtype
from executor_service.model.errors import ModelSourceError, UnsupportedModelError, as_model_source_error
from executor_service.model.fuse import fuse, multiplies_all
from executor_service.model.gguf import default_cache_dir
from executor_service.model.int8 import quantize
from executor_service.model.kept_names import import_transformers
from executor_service.model.lean_imports import lean_imports
from executor_service.model.lean_outlines import make_lean
from executor_service.model.loaded import LoadedModel, LoadedTokenizer
from executor_service.model.quantization import Quantization
from executor_service.model.shard import WHOLE, Shard, check_can_be_cut, cut
from executor_service.model.sources import resolve_source
from executor_service.model.weights import stored_tensors

_GENERATION_CONFIG = "generation_config.json"
_NUM_CACHED_WORDS = 1_000
_SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def load_model(
    source: str,
    *,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    progress: Callable[[str], None],
    cache_dir: Path | None = None,
    check: Callable[[Any, torch.dtype], object] | None = None,
    kernels: KernelChoice = KernelChoice.AUTO,
    shard: Shard = WHOLE,
    quantization: Quantization = Quantization.NONE,
    tokenizer_loaded: Callable[[LoadedTokenizer], object] | None = None,
) -> LoadedModel:
    """Load a model of `sources.py` in a dtype of `dtypes.py`. `progress` gets one line for each step that takes time.

    `check` gets configuration and dtype before the weights are loaded, and may raise what it likes; `tokenizer_loaded`
    gets the tokenizer then, so that others can work with it while the weights are loaded.

    Raises ModelSourceError, or UnsupportedModelError where the model needs more than causal attention over a KV cache.
    """
    device = torch.device(device)
    cache_dir = cache_dir or default_cache_dir()
    import_transformers(cache_dir)
    resolved = resolve_source(source, cache_dir=cache_dir, progress=progress)
    with as_model_source_error(f"cannot load {resolved.name}"):
        config = _load_config(resolved.name, resolved.directory)
        check_can_be_cut(resolved.name, config, shard.size)
        torch_dtype = resolve_dtype(
            dtype,
            device,
            has_products=lambda: (
                quantization is Quantization.NONE
                and has_products(kernels, cache_dir=cache_dir, progress=progress)
                and multiplies_all(_outline(config))
            ),
        )
    if check is not None:
        check(config, torch_dtype)
    try:
        chosen = load_kernels(kernels, dtype=torch_dtype, device=device, cache_dir=cache_dir, progress=progress)
    except KernelBuildError as error:
        raise ModelSourceError(f"cannot run {resolved.name} with compiled kernels: {error}") from error
    progress(f"loading {resolved.name} as {str(torch_dtype).removeprefix('torch.')} on {device}")
    with as_model_source_error(f"cannot load {resolved.name}"):
        tokenizer = _load_tokenizer(resolved.directory, config)
        give_back_freed_memory()
        if tokenizer_loaded is not None:
            tokenizer_loaded(tokenizer)
        return _load_directory(
            resolved.name,
            resolved.directory,
            config,
            tokenizer,
            torch_dtype,
            device,
            chosen,
            shard,
            quantization,
            progress,
        )


def _load_config(name: str, directory: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    _check_supported(name, config)
    return config


def _load_tokenizer(directory: Path, config: Any) -> LoadedTokenizer:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    _bound_cache(tokenizer)
    text_config = config.get_text_config(decoder=True)
    end_tokens = [text_config.eos_token_id, tokenizer.eos_token_id]
    if (directory / _GENERATION_CONFIG).is_file():
        end_tokens.append(GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id)
    return LoadedTokenizer(
        tokenizer=tokenizer, vocab_size=text_config.vocab_size, eos_token_ids=_token_ids(*end_tokens)
    )


def _bound_cache(tokenizer: Any) -> None:
    """A pipeline keeps what its first 10,000 words were cut into, about 2 KiB each, and a word is all of a prompt
    where the model cuts no words, as Gemma's: an executor would grow for hours, by texts that never come again."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    resize = getattr(model, "_resize_cache", None)
    if resize is not None:  # a model of pairs or of pieces; no other has a cache
        resize(_NUM_CACHED_WORDS)


def _load_directory(
    name: str,
    directory: Path,
    config: Any,
    loaded: LoadedTokenizer,
    dtype: torch.dtype,
    device: torch.device,
    kernels: CpuKernels | None,
    shard: Shard,
    quantization: Quantization,
    progress: Callable[[str], None],
) -> LoadedModel:
    tokenizer = loaded.tokenizer
    model = _load_weights(name, directory, config, dtype)
    num_parameters = model.num_parameters()
    cut(name, model, shard)
    packs_weights = quantization is Quantization.NONE
    greedy_head = fuse(model, kernels, packs_weights=packs_weights) if kernels is not None else None
    if quantization is Quantization.INT8:
        progress(f"quantizing {name} to int8")
        quantize(name, model)
    text_config = config.get_text_config(decoder=True)
    return LoadedModel(
        name=name,
        model=model.to(device),
        config=config,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        num_parameters=num_parameters,
        kernels=kernels,
        greedy_head=greedy_head,
        max_model_len=text_config.max_position_embeddings,
        eos_token_ids=loaded.eos_token_ids,
        bos_token_id=tokenizer.bos_token_id,
    )


def _outline(config: Any) -> Any:
    """The model without its weights, which takes no memory."""
    with lean_imports(), torch.device("meta"):
        from transformers import AutoModelForCausalLM

        return make_lean(lambda: AutoModelForCausalLM.from_config(config))  # type: ignore[no-untyped-call]


def _load_weights(name: str, directory: Path, config: Any, dtype: torch.dtype) -> Any:
    """The model with paged attention, in evaluation mode, on the CPU."""
    from transformers.utils import logging as transformers_logging

    # A bar for two seconds would only run through the log, and what is told there are events.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    with lean_imports():
        register_paged_attention()
    outline = _outline(config)
    with lean_imports():
        loaded: Any = make_lean(
            lambda: type(outline).from_pretrained(
                None,
                config=outline.config,
                state_dict=stored_tensors(directory),
                dtype=dtype,
                attn_implementation=ATTN_IMPLEMENTATION,
                output_loading_info=True,
            )
        )
    model, loading = loaded
    if loading["missing_keys"]:  # transformers warns and fills them with random numbers
        raise ModelSourceError(f"{name} lacks weights, {min(loading['missing_keys'])} among them")
    if not model._supports_attention_backend:
        raise UnsupportedModelError(f"{name}: transformers has no pluggable attention for {type(model).__name__}")
    return model


def _check_supported(name: str, config: Any) -> None:
    text_config = config.get_text_config(decoder=True)
    other_layers = set(getattr(text_config, "layer_types", None) or ()) - _SERVED_LAYER_TYPES
    if config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder-decoder; only decoder models are served")
    if other_layers:
        raise UnsupportedModelError(f"{name} has layers that paged attention does not serve: {', '.join(other_layers)}")
    if getattr(text_config, "use_bidirectional_attention", None):
        raise UnsupportedModelError(f"{name} attends in both directions; only causal models are served")
    if getattr(text_config, "num_kv_shared_layers", 0):
        raise UnsupportedModelError(f"{name} shares KV between layers, which the paged cache does not")


def _token_ids(*candidates: int | list[int] | None) -> frozenset[int]:
    """Configurations name one end token, several, or none."""
    ids: set[int] = set()
    for candidate in candidates:
        if isinstance(candidate, list):
            ids.update(candidate)
        elif candidate is not None:
            ids.add(candidate)
    return frozenset(ids)
