/**
 * A client of Metronome: generate on its executors, look into their books, ask a scheduler for plans.
 *
 * The messages of the contract are in `@metronome-llm/client/inference/v1`, `/executor/v1` and `/scheduler/v1`.
 */

export { type CallOptions, DEFAULT_STREAM_TIMEOUT_MS, DEFAULT_TIMEOUT_MS } from "./bounds.js";
export type { ClientOptions } from "./caller.js";
export { type ChannelSettings, MAX_MESSAGE_BYTES, type TlsOptions, type Token } from "./channel.js";
export * from "./errors.js";
export type { Delta, Event, Finished, FinishReason, Started, TokenLogprobs, Usage, Waiting } from "./events.js";
export type { Code, Failure, FieldViolation, QuotaViolation } from "./failure.js";
export { InferenceClient, type OneExecutorOptions } from "./inference-client.js";
export type { ChatMessage, GenerateOptions, Prompt } from "./requests.js";
export { DEFAULT_RETRY, type RetryOptions } from "./retry.js";
export { SchedulerClient } from "./scheduler-client.js";
export { type Columns, type Decision, decision, requestTable, type StatusName } from "./tables.js";
