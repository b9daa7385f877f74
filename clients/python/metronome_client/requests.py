"""What to ask an executor for: a prompt and options, and the message that carries them.

The client checks nothing that the service checks, so that there is one set of rules and it is the service's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metronome.inference.v1 import inference_pb2


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; `role` as the model's template names it: "system", "user", "assistant"."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[ChatMessage]
"""Text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """Options of a request.

    None leaves a choice to the executor: temperature 1, top_p 1, a random seed, as many tokens as fit.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float | None = None
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    priority: int = 0
    tenant: str = ""
    expected_output_tokens: int = 0
    request_id: str = ""


def generate_request(prompt: Prompt, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """Write the message. An empty sequence becomes an empty list of token ids, which the executor refuses."""
    request = inference_pb2.GenerateRequest(
        request_id=options.request_id,
        sampling=inference_pb2.SamplingParameters(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            seed=options.seed,
            repetition_penalty=options.repetition_penalty,
        ),
        stopping=inference_pb2.StoppingCriteria(
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            stop=options.stop,
            stop_token_ids=options.stop_token_ids,
            ignore_eos=options.ignore_eos,
        ),
        priority=options.priority,
        tenant=options.tenant,
        expected_output_tokens=options.expected_output_tokens,
    )
    if isinstance(prompt, str):
        request.text = prompt
    elif messages := [item for item in prompt if isinstance(item, ChatMessage)]:
        request.messages.CopyFrom(chat_messages(messages))
    else:
        token_ids = [item for item in prompt if isinstance(item, int)]
        request.token_ids.CopyFrom(inference_pb2.TokenIds(ids=token_ids))
    return request


def chat_messages(messages: Sequence[ChatMessage]) -> inference_pb2.ChatMessages:
    """Write a conversation."""
    turns = [inference_pb2.ChatMessage(role=message.role, content=message.content) for message in messages]
    return inference_pb2.ChatMessages(messages=turns)


def tokenize_request(prompt: str | Sequence[ChatMessage]) -> inference_pb2.TokenizeRequest:
    """Write the message that asks for the token ids of text or of a conversation."""
    if isinstance(prompt, str):
        return inference_pb2.TokenizeRequest(text=prompt)
    return inference_pb2.TokenizeRequest(messages=chat_messages(prompt))
