"""What to ask an executor for: a prompt and options, and the message that carries them.

The client checks nothing that the service checks, so that there is one set of rules and it is the service's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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

    None leaves a choice to the executor: temperature 1, top_p 1, a random seed, as many tokens as fit, any form, one
    answer, no log-probabilities. At most one of `json_schema` (as JSON, or as the value), `regex` and `grammar` is set.
    `logprobs`: how many of the most likely tokens come with each token of the answer; `prompt_logprobs`: of the prompt.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float | None = None
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    json_schema: str | Mapping[str, object] | None = None
    regex: str | None = None
    grammar: str | None = None
    n: int | None = None
    best_of: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    omit_text: bool = False
    priority: int = 0
    tenant: str = ""
    expected_output_tokens: int = 0
    request_id: str = ""


def generate_request(prompt: Prompt, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """Write the message. An empty sequence becomes an empty list of token ids, which the executor refuses.

    Raises ValueError where more than one form is asked for: the message has room for one.
    """
    _check_one_form(options)
    request = inference_pb2.GenerateRequest(
        request_id=options.request_id,
        sampling=inference_pb2.SamplingParameters(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            seed=options.seed,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            logit_bias=options.logit_bias,
            allowed_token_ids=options.allowed_token_ids,
            banned_token_ids=options.banned_token_ids,
            json_schema=_json_schema(options.json_schema),
            regex=options.regex,
            grammar=options.grammar,
            n=options.n,
            best_of=options.best_of,
        ),
        stopping=inference_pb2.StoppingCriteria(
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            stop=options.stop,
            stop_token_ids=options.stop_token_ids,
            ignore_eos=options.ignore_eos,
        ),
        output=inference_pb2.OutputOptions(
            echo=options.echo,
            logprobs=options.logprobs,
            prompt_logprobs=options.prompt_logprobs,
            omit_text=options.omit_text,
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


def _check_one_form(options: GenerateOptions) -> None:
    asked = [name for name in ("json_schema", "regex", "grammar") if getattr(options, name) is not None]
    if len(asked) > 1:
        raise ValueError(f"an answer has one form, not {' and '.join(asked)}")


def _json_schema(schema: str | Mapping[str, object] | None) -> str | None:
    return schema if schema is None or isinstance(schema, str) else json.dumps(schema)


def chat_messages(messages: Sequence[ChatMessage]) -> inference_pb2.ChatMessages:
    """Write a conversation."""
    turns = [inference_pb2.ChatMessage(role=message.role, content=message.content) for message in messages]
    return inference_pb2.ChatMessages(messages=turns)


def tokenize_request(prompt: str | Sequence[ChatMessage]) -> inference_pb2.TokenizeRequest:
    """Write the message that asks for the token ids of text or of a conversation."""
    if isinstance(prompt, str):
        return inference_pb2.TokenizeRequest(text=prompt)
    return inference_pb2.TokenizeRequest(messages=chat_messages(prompt))
