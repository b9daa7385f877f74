/** What an executor looks at before it takes a request: the ranges of the contract, and whether it can ever fit. */

import { create, type DescMessage, type Message } from "@bufbuild/protobuf";
import { type ReflectMessage, reflect } from "@bufbuild/protobuf/reflect";
import {
  type GenerateRequest,
  GenerateRequestSchema,
  OutputOptionsSchema,
  type SamplingParameters,
  SamplingParametersSchema,
  type StoppingCriteria,
  StoppingCriteriaSchema,
} from "../gen/metronome/inference/v1/inference_pb.js";
import { Refusal } from "../serving.js";

const GREEDY_BELOW = 1e-5;
const INT32_MAX = 2 ** 31 - 1;
const MAX_NAME_BYTES = 256;

/** Field: least and most, where it is set. */
const RANGES: Readonly<Record<string, readonly [number, number]>> = {
  "sampling.temperature": [0, 100],
  "sampling.top_k": [0, INT32_MAX],
  "sampling.top_p": [1e-30, 1], // above 0
  "sampling.min_p": [0, 1],
  "sampling.repetition_penalty": [1e-6, 100],
  "sampling.presence_penalty": [-2, 2],
  "sampling.frequency_penalty": [-2, 2],
  "sampling.n": [1, 64],
  "sampling.best_of": [1, 64],
  "stopping.max_tokens": [1, INT32_MAX],
  "stopping.min_tokens": [0, INT32_MAX],
  "output.logprobs": [0, 20],
  "output.prompt_logprobs": [0, 20],
  expected_output_tokens: [0, INT32_MAX],
};

/** Field: most entries. */
const SIZES: Readonly<Record<string, number>> = {
  "sampling.logit_bias": 1024,
  "sampling.banned_token_ids": 1024,
  "stopping.stop": 16,
  "stopping.stop_token_ids": 64,
};

/** What `Request` and a sampler can do. The rest is refused, unless the executor says that it has it. */
const OFFERED: ReadonlySet<string> = new Set([
  ...["sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p", "sampling.seed"],
  ...["stopping.max_tokens", "stopping.stop", "stopping.ignore_eos", "output.omit_text"],
]);
const NEUTRAL: Readonly<Record<string, number>> = {
  "sampling.n": 1,
  "sampling.best_of": 1,
  "sampling.repetition_penalty": 1,
};

/** A request that was found good. `sampling`: the parameters in force, defaults and the drawn seed filled in. */
export interface Wanted {
  readonly name: string;
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly sampling: SamplingParameters;
  readonly isGreedy: boolean;
  readonly seed: bigint;
  readonly stop: readonly string[];
  readonly minTokens: number;
  readonly omitText: boolean;
  readonly priority: number;
  readonly expectedOutputTokens: number;
}

/** What a request is checked against. `offered`: paths of what the executor has besides: "sampling.logit_bias". */
export interface Check {
  readonly limits: { readonly maxModelLen: number; readonly numBlocks: number; readonly blockSize: number };
  readonly tokenize: (text: string) => readonly number[];
  readonly vocabSize: number;
  readonly offered?: readonly string[];
}

/**
 * What is wanted. Throws a `Refusal` with the reason of the contract, and the field where one is at fault.
 *
 * Every executor that calls it has temperature, top-k, top-p, min-p and seed, stop strings and `ignore_eos`. Several answers
 * (`n`) and conversations are not for it to offer.
 */
export function checked(message: GenerateRequest, check: Check): Wanted {
  const given = [...fieldsOf(message)];
  for (const [path, value] of given) {
    checkRange(path, value);
  }
  for (const [path, value] of given) {
    checkOffered(path, value, check.offered ?? []);
  }
  const { stopping, output, sampling: asked } = message;
  const prompt = promptOf(message, check);
  const seed = asked?.seed ?? BigInt(Math.floor(Math.random() * 2 ** 32));
  const { $typeName: _, ...parameters } = asked ?? create(SamplingParametersSchema);
  const sampling = { temperature: 1, topP: 1, repetitionPenalty: 1, n: 1, ...defined(parameters), seed };
  return {
    name: message.requestId || crypto.randomUUID(),
    prompt,
    maxTokens: maxTokensOf(stopping, prompt.length, check.limits),
    sampling: create(SamplingParametersSchema, sampling),
    isGreedy: (asked?.temperature ?? 1) < GREEDY_BELOW,
    seed,
    stop: stopping?.stop ?? [],
    minTokens: stopping?.minTokens ?? 0,
    omitText: output?.omitText ?? false,
    priority: message.priority,
    expectedOutputTokens: message.expectedOutputTokens,
  };
}

/** The ids, as tokens. Throws a `Refusal` where one is not in the vocabulary. */
export function knownTokens(ids: readonly number[], vocabSize: number, field: string): readonly number[] {
  const i = ids.findIndex((id) => !(id >= 0 && id < vocabSize));
  if (i >= 0) {
    throw invalid("UNKNOWN_TOKEN", `${ids[i]} is not in the vocabulary`, `${field}[${i}]`, ids[i]);
  }
  return ids;
}

/** Paths and values of the fields that are set. */
function* fieldsOf(message: GenerateRequest): Iterable<[string, unknown]> {
  yield* setFields(GenerateRequestSchema, message, "");
  yield* setFields(SamplingParametersSchema, message.sampling, "sampling.");
  yield* setFields(StoppingCriteriaSchema, message.stopping, "stopping.");
  yield* setFields(OutputOptionsSchema, message.output, "output.");
}

function* setFields<D extends DescMessage>(
  schema: D,
  message: Message | undefined,
  prefix: string,
): Iterable<[string, unknown]> {
  if (message !== undefined) {
    const fields: ReflectMessage = reflect(schema, message as never);
    for (const field of fields.fields) {
      if (fields.isSet(field)) {
        yield [`${prefix}${field.name}`, fields.get(field)];
      }
    }
  }
}

function checkRange(path: string, value: unknown): void {
  const range = RANGES[path];
  if (range !== undefined && !(Number(value) >= range[0] && Number(value) <= range[1])) {
    throw invalid("OUT_OF_RANGE", `${path} must be ${range[0]} to ${range[1]}`, path, value);
  }
  const most = SIZES[path];
  const entries = [...((most === undefined ? [] : value) as Iterable<unknown>)];
  if (most !== undefined && entries.length > most) {
    throw invalid("OUT_OF_RANGE", `${path} may have ${most} entries`, path, entries.length);
  }
  const numBytes = path === "request_id" || path === "tenant" ? Buffer.byteLength(value as string) : 0;
  if (numBytes > MAX_NAME_BYTES) {
    throw invalid("OUT_OF_RANGE", `${path} may have ${MAX_NAME_BYTES} bytes`, path, numBytes);
  }
  if (path === "stopping.stop" && entries.includes("")) {
    const field = `${path}[${entries.indexOf("")}]`;
    throw invalid("OUT_OF_RANGE", "a stop string has at least one character", field, "");
  }
}

function checkOffered(path: string, value: unknown, offered: readonly string[]): void {
  const isKnown = OFFERED.has(path) || offered.includes(path) || value === NEUTRAL[path];
  if (path.includes(".") && !isKnown) {
    throw new Refusal("UNIMPLEMENTED", "NOT_OFFERED", `${path} is not offered here`, { metadata: { field: path } });
  }
}

function promptOf({ prompt: given }: GenerateRequest, { tokenize, vocabSize }: Check): readonly number[] {
  switch (given.case) {
    case "messages":
      throw new Refusal("FAILED_PRECONDITION", "NO_CHAT_TEMPLATE", "prompts are text to continue");
    case "tokenIds":
      return notEmpty(knownTokens(given.value.ids, vocabSize, "token_ids.ids"), "token_ids");
    case "text": // of no text a tokenizer may make a start token
      return notEmpty(given.value === "" ? [] : tokenize(given.value), "text");
    default:
      return notEmpty([], "prompt");
  }
}

function notEmpty(tokens: readonly number[], field: string): readonly number[] {
  if (tokens.length === 0) {
    throw new Refusal("INVALID_ARGUMENT", "EMPTY_PROMPT", "the prompt is empty", { field });
  }
  return tokens;
}

/** Most tokens of the answer. The newest one needs no place in the cache. */
function maxTokensOf(stopping: StoppingCriteria | undefined, numPrompt: number, limits: Check["limits"]): number {
  const { maxModelLen, numBlocks, blockSize } = limits;
  const inCache = numBlocks * blockSize - numPrompt + 1;
  const maxTokens = stopping?.maxTokens ?? Math.max(1, Math.min(maxModelLen - numPrompt, inCache));
  if (numPrompt + maxTokens > maxModelLen) {
    const metadata = { needed_tokens: `${numPrompt + maxTokens}`, max_model_len: `${maxModelLen}` };
    const message = "prompt and answer are longer than the model takes";
    throw new Refusal("INVALID_ARGUMENT", "EXCEEDS_MODEL_LEN", message, { metadata });
  }
  if (maxTokens > inCache) {
    const needed = Math.ceil((numPrompt + maxTokens - 1) / blockSize);
    const metadata = { needed_blocks: `${needed}`, num_blocks: `${numBlocks}` };
    throw new Refusal("INVALID_ARGUMENT", "EXCEEDS_KV_CACHE", "it needs more blocks than there are", { metadata });
  }
  return maxTokens;
}

function defined<T extends object>(fields: T): Partial<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Partial<T>;
}

function invalid(reason: "OUT_OF_RANGE" | "UNKNOWN_TOKEN", message: string, field: string, value: unknown): Refusal {
  return new Refusal("INVALID_ARGUMENT", reason, message, { field, metadata: { value: `${value}`.slice(0, 64) } });
}
