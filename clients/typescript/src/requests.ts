/**
 * What to ask an executor for: a prompt and options, and the message that carries them.
 *
 * The client checks nothing that the service checks, so that there is one set of rules and it is the service's.
 */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  type GenerateRequest,
  GenerateRequestSchema,
  type SamplingParametersSchema,
  type TokenizeRequest,
  TokenizeRequestSchema,
} from "./gen/metronome/inference/v1/inference_pb.js";

/** One turn of a conversation; `role` as the model's template names it: "system", "user", "assistant". */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

/** Text, token ids, or a conversation. */
export type Prompt = string | readonly number[] | readonly ChatMessage[];

/**
 * Options of a request.
 *
 * What is left out is the executor's choice: temperature 1, topP 1, a random seed, as many tokens as fit, any form, one
 * answer, no log-probabilities. At most one of `jsonSchema` (as JSON, or as the value), `regex` and `grammar` is set.
 * `logprobs`: how many of the most likely tokens come with each token of the answer; `promptLogprobs`: of the prompt.
 */
export interface GenerateOptions {
  readonly maxTokens?: number;
  readonly temperature?: number;
  readonly topK?: number;
  readonly topP?: number;
  readonly minP?: number;
  readonly seed?: number | bigint;
  readonly repetitionPenalty?: number;
  readonly presencePenalty?: number;
  readonly frequencyPenalty?: number;
  readonly logitBias?: Readonly<Record<number, number>>;
  readonly allowedTokenIds?: readonly number[];
  readonly bannedTokenIds?: readonly number[];
  readonly jsonSchema?: string | object;
  readonly regex?: string;
  readonly grammar?: string;
  readonly n?: number;
  readonly bestOf?: number;
  readonly stop?: readonly string[];
  readonly stopTokenIds?: readonly number[];
  readonly ignoreEos?: boolean;
  readonly minTokens?: number;
  readonly echo?: boolean;
  readonly logprobs?: number;
  readonly promptLogprobs?: number;
  readonly omitText?: boolean;
  readonly priority?: number;
  readonly tenant?: string;
  readonly expectedOutputTokens?: number;
  readonly requestId?: string;
}

/**
 * Writes the message. An empty list becomes an empty list of token ids, which the executor refuses.
 *
 * Throws TypeError where more than one form is asked for: the message has room for one.
 */
export function generateRequest(prompt: Prompt, options: GenerateOptions): GenerateRequest {
  return create(GenerateRequestSchema, {
    requestId: options.requestId,
    prompt: promptOf(prompt),
    sampling: {
      temperature: options.temperature,
      topK: options.topK,
      topP: options.topP,
      minP: options.minP,
      seed: options.seed === undefined ? undefined : BigInt(options.seed),
      repetitionPenalty: options.repetitionPenalty,
      presencePenalty: options.presencePenalty,
      frequencyPenalty: options.frequencyPenalty,
      logitBias: options.logitBias,
      allowedTokenIds: listOf(options.allowedTokenIds),
      bannedTokenIds: listOf(options.bannedTokenIds),
      n: options.n,
      bestOf: options.bestOf,
      constraint: constraintOf(options),
    },
    stopping: {
      maxTokens: options.maxTokens,
      minTokens: options.minTokens,
      stop: listOf(options.stop),
      stopTokenIds: listOf(options.stopTokenIds),
      ignoreEos: options.ignoreEos,
    },
    output: {
      echo: options.echo,
      logprobs: options.logprobs,
      promptLogprobs: options.promptLogprobs,
      omitText: options.omitText,
    },
    priority: options.priority,
    tenant: options.tenant,
    expectedOutputTokens: options.expectedOutputTokens,
  });
}

/** Writes the message that asks for the token ids of text or of a conversation. */
export function tokenizeRequest(prompt: string | readonly ChatMessage[]): TokenizeRequest {
  return create(TokenizeRequestSchema, {
    input: typeof prompt === "string" ? { case: "text", value: prompt } : conversation(prompt),
  });
}

function promptOf(prompt: Prompt): MessageInitShape<typeof GenerateRequestSchema>["prompt"] {
  if (typeof prompt === "string") {
    return { case: "text", value: prompt };
  }
  return isConversation(prompt) ? conversation(prompt) : { case: "tokenIds", value: { ids: [...prompt] } };
}

function isConversation(prompt: readonly number[] | readonly ChatMessage[]): prompt is readonly ChatMessage[] {
  return typeof prompt[0] === "object";
}

function conversation(turns: readonly ChatMessage[]) {
  const messages = turns.map(({ role, content }) => ({ role, content }));
  return { case: "messages" as const, value: { messages } };
}

function constraintOf(
  options: GenerateOptions,
): NonNullable<MessageInitShape<typeof SamplingParametersSchema>["constraint"]> | undefined {
  const { jsonSchema, regex, grammar } = options;
  const asked = Object.entries({ jsonSchema, regex, grammar }).filter(([, form]) => form !== undefined);
  if (asked.length > 1) {
    throw new TypeError(`an answer has one form, not ${asked.map(([name]) => name).join(" and ")}`);
  }
  if (jsonSchema !== undefined) {
    const value = typeof jsonSchema === "string" ? jsonSchema : JSON.stringify(jsonSchema);
    return { case: "jsonSchema", value };
  }
  if (regex !== undefined) {
    return { case: "regex", value: regex };
  }
  return grammar === undefined ? undefined : { case: "grammar", value: grammar };
}

function listOf<T>(items: readonly T[] | undefined): T[] | undefined {
  return items === undefined ? undefined : [...items];
}
