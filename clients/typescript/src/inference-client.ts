/** The client of executors. */

import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type CallOptions, DEFAULT_STREAM_TIMEOUT_MS } from "./bounds.js";
import { Caller, type ClientOptions } from "./caller.js";
import { NotFoundError } from "./errors.js";
import { type Event, eventFromMessage } from "./events.js";
import {
  DrainRequestSchema,
  ExecutorService,
  GetStateRequestSchema,
  type GetStateResponse,
  WatchStateRequestSchema,
  type WatchStateResponse,
} from "./gen/metronome/executor/v1/executor_pb.js";
import {
  CancelRequestSchema,
  DetokenizeRequestSchema,
  GetModelInfoRequestSchema,
  type GetModelInfoResponse,
  InferenceService,
} from "./gen/metronome/inference/v1/inference_pb.js";
import { type ChatMessage, type GenerateOptions, generateRequest, type Prompt, tokenizeRequest } from "./requests.js";

/** Options of calls that concern one executor: which one, where the client has several. */
export interface OneExecutorOptions extends CallOptions {
  readonly address?: string;
}

/**
 * Calls one executor, or several that run the same model, in turn. Every method throws a `MetronomeError` where a call fails.
 *
 *     const client = new InferenceClient("127.0.0.1:50052");
 *     for await (const event of client.generate("Once upon a time", { maxTokens: 64 })) {
 *       if (event.kind === "delta") process.stdout.write(event.text);
 *     }
 *     client.close();
 */
export class InferenceClient {
  readonly #caller: Caller;

  /** `addresses`: one or more host:port. Throws TypeError for settings that make no sense. */
  constructor(addresses: string | readonly string[], options: ClientOptions = {}) {
    this.#caller = new Caller(addresses, InferenceService.typeName, options);
  }

  /** Closes the channels; what streams on them is cancelled. */
  close(): void {
    this.#caller.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Generates, giving events as they arrive.
   *
   * The request is sent when the first event is asked for; leaving the loop cancels it. `timeoutMs` is the deadline of the
   * whole answer, ten minutes where nothing is said. Throws TypeError or RangeError, at once, for options that the message
   * has no room for.
   */
  generate(prompt: Prompt, options: GenerateOptions & CallOptions = {}): AsyncGenerator<Event, void, undefined> {
    return this.#events(generateRequest(prompt, options), options);
  }

  async *#events(
    request: ReturnType<typeof generateRequest>,
    { signal, timeoutMs = DEFAULT_STREAM_TIMEOUT_MS }: CallOptions,
  ): AsyncGenerator<Event, void, undefined> {
    const messages = this.#caller.stream(
      InferenceService.method.generate,
      request,
      { signal, timeoutMs },
      // An executor drops the request of a call that breaks off.
      { repeatable: true },
    );
    for await (const message of messages) {
      const event = eventFromMessage(message);
      if (event !== undefined) {
        yield event;
      }
    }
  }

  /** Cancels a request of any client by its id, on whichever executor it is; its own call ends with CANCELLED. */
  async cancel(requestId: string, options: CallOptions = {}): Promise<void> {
    const request = create(CancelRequestSchema, { requestId });
    const answers = await Promise.allSettled(
      this.#caller.endpoints.all.map((endpoint) =>
        this.#caller.unary(InferenceService.method.cancel, request, options, endpoint),
      ),
    );
    if (answers.some(({ status }) => status === "fulfilled")) {
      return;
    }
    const errors = answers.map((answer) => (answer as PromiseRejectedResult).reason as unknown);
    throw errors.find((error) => !(error instanceof NotFoundError)) ?? errors[0];
  }

  /** Turns text or a conversation into token ids, as `generate` would. */
  async tokenize(prompt: string | readonly ChatMessage[], options: CallOptions = {}): Promise<number[]> {
    const request = tokenizeRequest(prompt);
    return (await this.#caller.unary(InferenceService.method.tokenize, request, options)).tokenIds;
  }

  /** Turns token ids into text, special tokens left out. */
  async detokenize(tokenIds: readonly number[], options: CallOptions = {}): Promise<string> {
    const request = create(DetokenizeRequestSchema, { tokenIds: [...tokenIds] });
    return (await this.#caller.unary(InferenceService.method.detokenize, request, options)).text;
  }

  /** Describes the model that the executors run. */
  modelInfo(options: CallOptions = {}): Promise<GetModelInfoResponse> {
    return this.#caller.unary(InferenceService.method.getModelInfo, create(GetModelInfoRequestSchema), options);
  }

  /** Gives an executor's books as they stand between two passes. */
  async state({ address, ...options }: OneExecutorOptions = {}): Promise<GetStateResponse> {
    const request = create(GetStateRequestSchema);
    return this.#caller.unary(ExecutorService.method.getState, request, options, this.#caller.endpoints.named(address));
  }

  /**
   * Streams an executor's books: the present ones first, then one message a pass, `minIntervalMs` apart at least.
   *
   * It goes on until the loop is left or the executor stops, unless `timeoutMs` is given.
   */
  async *watchState({
    address,
    minIntervalMs = 0,
    signal,
    timeoutMs = Number.POSITIVE_INFINITY,
  }: OneExecutorOptions & { readonly minIntervalMs?: number } = {}): AsyncGenerator<
    WatchStateResponse,
    void,
    undefined
  > {
    const request = create(WatchStateRequestSchema, { minInterval: durationFromMs(minIntervalMs) });
    const only = this.#caller.endpoints.named(address);
    const options = { signal, timeoutMs };
    yield* this.#caller.stream(ExecutorService.method.watchState, request, options, { only, repeatable: true });
  }

  /**
   * Makes an executor take no new requests, and returns when the last one has ended.
   *
   * At the timeout, ten minutes where nothing is said, the executor goes on draining.
   */
  async drain({ address, signal, timeoutMs = DEFAULT_STREAM_TIMEOUT_MS }: OneExecutorOptions = {}): Promise<void> {
    const only = this.#caller.endpoints.named(address);
    await this.#caller.unary(ExecutorService.method.drain, create(DrainRequestSchema), { signal, timeoutMs }, only);
  }
}
