"""A tiny random model as files, for executor processes to load. Takes seconds to import, as transformers does."""

from __future__ import annotations

from pathlib import Path

from support.tiny_models import tiny_model

# Refuses a conversation that the user does not open, as real templates do.
CHAT_TEMPLATE = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('the user speaks first') }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)


def save_tiny_model(directory: Path, *, chat_template: str | None = None) -> Path:
    """Write configuration, safetensors and tokenizer. A base model unless it gets a chat template."""
    loaded = tiny_model("tiny-qwen3")
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.chat_template = chat_template
    loaded.tokenizer.save_pretrained(directory)
    return directory
