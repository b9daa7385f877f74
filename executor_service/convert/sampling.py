"""Sampling parameters of a request to the engine's, checked field by field; and those in force back to a message."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from executor_service.convert.checks import at_most, in_range, of_vocabulary, out_of_range, unknown_token
from executor_service.engine.request import Sampling
from executor_service.errors import ServiceError
from executor_service.sampling.adjustments import Adjustments, Constraint, ConstraintKind
from executor_service.sampling.constraints import ConstraintCompiler, ConstraintError, ConstraintsNotOfferedError
from executor_service.sampling.entries import LogitBias
from executor_service.sampling.masks import AllowedTokens
from executor_service.sampling.penalties import Penalties
from executor_service.text.errors import UnknownTokenError
from executor_service.text.tokenizer import Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons
from metronome.inference.v1 import inference_pb2 as pb

MAX_TEMPERATURE = 100.0
LEAST_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1e-6, 100.0  # what is smaller takes logits out of float32
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASED_TOKENS = 1024
MAX_BANNED_TOKENS = 1024
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
DEFAULT_REPETITION_PENALTY = 1.0

TokenIds = NDArray[np.int64]


def parse_sampling(message: pb.SamplingParameters, tokenizer: Tokenizer, constraints: ConstraintCompiler) -> Sampling:
    """Raises ServiceError that names the field at fault. Compiles the constraint, so it may take a while."""
    temperature = message.temperature if message.HasField("temperature") else DEFAULT_TEMPERATURE
    top_p = message.top_p if message.HasField("top_p") else DEFAULT_TOP_P
    if not 0 < top_p <= 1:
        raise out_of_range("sampling.top_p", top_p, "above 0 and at most 1")
    seed = message.seed if message.HasField("seed") else secrets.randbits(63)
    banned = _banned(message, tokenizer)
    return Sampling(
        temperature=in_range(temperature, "sampling.temperature", low=0.0, high=MAX_TEMPERATURE),
        top_k=in_range(message.top_k, "sampling.top_k", low=0),
        top_p=top_p,
        min_p=in_range(message.min_p, "sampling.min_p", low=0.0, high=1.0),
        seed=seed % (1 << 64),
        adjustments=Adjustments(
            bias=_bias(message, tokenizer),
            penalties=_penalties(message),
            allowed=_allowed(message, banned, tokenizer),
            banned_token_ids=banned,
            constraint=_constraint(message, constraints),
        ),
    )


def sampling_in_force(sampling: Sampling) -> pb.SamplingParameters:
    """What was understood, defaults and the drawn seed filled in: sent again, it means the same."""
    adjustments = sampling.adjustments
    message = pb.SamplingParameters(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed - (1 << 64 if sampling.seed >> 63 else 0),
        repetition_penalty=adjustments.penalties.repetition,
        presence_penalty=adjustments.penalties.presence,
        frequency_penalty=adjustments.penalties.frequency,
    )
    if adjustments.bias is not None:
        message.logit_bias.update(
            zip(adjustments.bias.token_ids.tolist(), adjustments.bias.values.tolist(), strict=True)
        )
    if adjustments.allowed is not None:
        message.allowed_token_ids.extend(adjustments.allowed.token_ids.tolist())
    if adjustments.banned_token_ids is not None:
        message.banned_token_ids.extend(adjustments.banned_token_ids.tolist())
    if adjustments.constraint is not None:
        setattr(message, adjustments.constraint.kind, adjustments.constraint.text)
    return message


def _penalties(message: pb.SamplingParameters) -> Penalties:
    repetition = message.repetition_penalty if message.HasField("repetition_penalty") else DEFAULT_REPETITION_PENALTY
    if not LEAST_REPETITION_PENALTY < repetition <= MAX_REPETITION_PENALTY:
        raise out_of_range("sampling.repetition_penalty", repetition, "above 0.000001 and at most 100")
    return Penalties(
        repetition=repetition,
        presence=in_range(message.presence_penalty, "sampling.presence_penalty", low=-MAX_PENALTY, high=MAX_PENALTY),
        frequency=in_range(message.frequency_penalty, "sampling.frequency_penalty", low=-MAX_PENALTY, high=MAX_PENALTY),
    )


def _bias(message: pb.SamplingParameters, tokenizer: Tokenizer) -> LogitBias | None:
    if not message.logit_bias:
        return None
    at_most(len(message.logit_bias), "sampling.logit_bias", MAX_BIASED_TOKENS, "tokens")
    biases = sorted(message.logit_bias.items())
    for token_id, value in biases:
        field = f"sampling.logit_bias[{token_id}]"
        try:
            tokenizer.validate((token_id,))
        except UnknownTokenError as error:
            raise unknown_token(error, field) from error
        in_range(value, field, low=-MAX_BIAS, high=MAX_BIAS)
    return LogitBias(
        token_ids=np.array([token_id for token_id, _ in biases], dtype=np.int64),
        values=np.array([value for _, value in biases], dtype=np.float32),
    )


def _banned(message: pb.SamplingParameters, tokenizer: Tokenizer) -> TokenIds | None:
    if not message.banned_token_ids:
        return None
    at_most(len(message.banned_token_ids), "sampling.banned_token_ids", MAX_BANNED_TOKENS, "tokens")
    of_vocabulary(message.banned_token_ids, "sampling.banned_token_ids", tokenizer)
    return np.unique(np.array(message.banned_token_ids, dtype=np.int64))


def _allowed(message: pb.SamplingParameters, banned: TokenIds | None, tokenizer: Tokenizer) -> AllowedTokens | None:
    """Those that are not banned, at least one."""
    field = "sampling.allowed_token_ids"
    if not message.allowed_token_ids:
        if banned is not None and len(banned) == tokenizer.vocab_size:
            raise out_of_range("sampling.banned_token_ids", "the whole vocabulary", "less")
        return None
    at_most(len(message.allowed_token_ids), field, tokenizer.vocab_size, "tokens")
    of_vocabulary(message.allowed_token_ids, field, tokenizer)
    allowed = np.array(message.allowed_token_ids, dtype=np.int64)
    left = np.unique(allowed) if banned is None else np.setdiff1d(allowed, banned)
    if not len(left):
        raise out_of_range(field, "a list of banned tokens", "one with a token that is not banned")
    return AllowedTokens(left)


def _constraint(message: pb.SamplingParameters, constraints: ConstraintCompiler) -> Constraint | None:
    name = message.WhichOneof("constraint")
    if name is None:
        return None
    field, text = f"sampling.{name}", getattr(message, name)
    try:
        return constraints.compile(ConstraintKind(name), text)
    except ConstraintError as error:
        message_to_author = f"{field} cannot be kept to: {error}"
        raise ServiceError(reasons.ERROR_REASON_INVALID_CONSTRAINT, message_to_author, field=field) from error
    except ConstraintsNotOfferedError as error:
        raise ServiceError(reasons.ERROR_REASON_NOT_OFFERED, str(error), field=field) from error
