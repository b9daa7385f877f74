/** What is refused before it is in the books, with the field at fault. */

import type { GenerateRequest } from "@metronome-llm/client/inference/v1";
import { Refusal } from "@metronome-llm/client/serving";
import { LIMITS, tokensOf, VOCAB_SIZE } from "./model.mjs";

/** What to run for a request. Throws what refuses one that is at fault, or can never fit. */
export function checked({ prompt: given, sampling, stopping, output, ...message }: GenerateRequest) {
  const ranges: [string, number | undefined, number, number][] = [
    ["sampling.temperature", sampling?.temperature, 0, 100],
    ["sampling.top_k", sampling?.topK, 0, 2 ** 31],
    ["sampling.top_p", sampling?.topP, 1e-9, 1],
    ["sampling.min_p", sampling?.minP, 0, 1],
    ["sampling.n", sampling?.n, 1, 64],
    ["stopping.max_tokens", stopping?.maxTokens, 1, 2 ** 31],
    ["stopping.min_tokens", stopping?.minTokens, 0, 2 ** 31],
    ["output.logprobs", output?.logprobs, 0, 20],
    ["output.prompt_logprobs", output?.promptLogprobs, 0, 20],
    ["expected_output_tokens", message.expectedOutputTokens, 0, 2 ** 31],
    ["request_id", Buffer.byteLength(message.requestId), 0, 256],
    ["tenant", Buffer.byteLength(message.tenant), 0, 256],
  ];
  for (const [field, value, least, most] of ranges) {
    if (value !== undefined && !(value >= least && value <= most)) {
      throw new Refusal("INVALID_ARGUMENT", "OUT_OF_RANGE", `${field} is ${value}`, {
        field,
        metadata: { value: `${value}` },
      });
    }
  }
  const missing: [string, boolean][] = [
    ["sampling.n", (sampling?.n ?? 1) > 1 || (sampling?.bestOf ?? 1) > 1],
    ["sampling.constraint", sampling?.constraint.case !== undefined],
    ["output.logprobs", output?.logprobs !== undefined || output?.promptLogprobs !== undefined],
    ["sampling.banned_token_ids", Boolean(sampling?.bannedTokenIds.length || sampling?.allowedTokenIds.length)],
    ["sampling.logit_bias", Object.keys(sampling?.logitBias ?? {}).length > 0],
    ["sampling.repetition_penalty", (sampling?.repetitionPenalty ?? 1) !== 1],
    ["sampling.presence_penalty", Boolean(sampling?.presencePenalty || sampling?.frequencyPenalty)],
    ["output.echo", output?.echo === true],
  ];
  for (const [field, isAsked] of missing) {
    if (isAsked) {
      throw new Refusal("UNIMPLEMENTED", "NOT_OFFERED", `${field} is not offered here`, { field });
    }
  }
  if (given.case === "messages") {
    throw new Refusal("FAILED_PRECONDITION", "NO_CHAT_TEMPLATE", "bytes have no chat template: send text");
  }
  const prompt =
    given.case === "tokenIds" ? knownTokens(given.value.ids, "token_ids.ids") : tokensOf(given.value ?? "");
  if (prompt.length === 0) {
    throw new Refusal("INVALID_ARGUMENT", "EMPTY_PROMPT", "there is no prompt", {
      field: given.case === "tokenIds" ? "token_ids" : "text",
    });
  }
  const maxTokens = stopping?.maxTokens ?? Math.max(1, LIMITS.maxModelLen - prompt.length);
  if (prompt.length + maxTokens > LIMITS.maxModelLen) {
    const metadata = { needed_tokens: `${prompt.length + maxTokens}`, max_model_len: `${LIMITS.maxModelLen}` };
    throw new Refusal("INVALID_ARGUMENT", "EXCEEDS_MODEL_LEN", "it is longer than the model takes", { metadata });
  }
  return { prompt, maxTokens }; // the cache holds more than the model takes
}

/** The ids, as tokens. Throws what refuses one that is none. */
export function knownTokens(ids: readonly number[], path: string): readonly number[] {
  const i = ids.findIndex((id) => !(id >= 0 && id < VOCAB_SIZE));
  if (i >= 0) {
    const details = { field: `${path}[${i}]`, metadata: { value: `${ids[i]}` } };
    throw new Refusal("INVALID_ARGUMENT", "UNKNOWN_TOKEN", "a token is a byte", details);
  }
  return ids;
}
