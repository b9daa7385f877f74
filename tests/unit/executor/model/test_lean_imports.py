"""What an executor imports, in a process of its own: others of this one have imported torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.model_directory import save_tiny_model

PROGRAM = """
import importlib, sys

import executor_service.server
from executor_service.model.lean_imports import lean_imports

NOT_NEEDED = ("torch._dynamo.convert_frame", "torch.distributed.tensor", "sympy")

with lean_imports():
    from transformers import AutoModelForCausalLM
    for name in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
print([name for name in NOT_NEEDED if name in sys.modules])

import torch
from transformers.utils import is_torch_distributed_available

assert is_torch_distributed_available() == torch.distributed.is_available()
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_the_listed_models_come_without_the_compiler_which_is_there_for_who_asks() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert (done.stdout.split("\n"), done.returncode) == (["[]", "2.0", ""], 0), done.stderr


LOADING = """
import sys
from pathlib import Path

from executor_service.kernels.choice import KernelChoice
from executor_service.model.loader import load_model

load_model(sys.argv[1], dtype="bfloat16", kernels=KernelChoice.TORCH, progress=lambda line: None)
NOT_NEEDED = ("torch._dynamo.convert_frame", "torch.distributed.tensor", "sympy")
print([name for name in NOT_NEEDED if name in sys.modules])
"""


def test_a_model_is_loaded_without_the_compiler_and_without_symbols(tmp_path: Path) -> None:
    directory = str(save_tiny_model(tmp_path))
    done = subprocess.run([sys.executable, "-c", LOADING, directory], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
