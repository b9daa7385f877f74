/** Calls the servers of a client: picks one, tries again where the contract allows it, and keeps to the deadline. */

import type {
  DescMessage,
  DescMethodBiDiStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageShape,
} from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { Bounds, type CallOptions, DEFAULT_TIMEOUT_MS } from "./bounds.js";
import { bidiOnce, type Requests, streamOnce, unaryOnce } from "./call.js";
import type { ChannelSettings } from "./channel.js";
import { type Endpoint, Endpoints } from "./endpoints.js";
import { MetronomeError } from "./errors.js";
import { DEFAULT_RETRY, pauseMs, type RetryOptions } from "./retry.js";

/** Options of a client. */
export interface ClientOptions extends ChannelSettings {
  /** Default of each call's `timeoutMs` that answers at once, in milliseconds. Default: 10,000. */
  readonly timeoutMs?: number;
  /** When calls are tried again; what is left out is as in `DEFAULT_RETRY`. */
  readonly retry?: Partial<RetryOptions>;
}

export class Caller {
  readonly endpoints: Endpoints;
  readonly #retry: RetryOptions;
  readonly #timeoutMs: number;

  constructor(addresses: string | readonly string[], service: string, options: ClientOptions) {
    this.endpoints = new Endpoints(addresses, service, options);
    this.#retry = { ...DEFAULT_RETRY, ...options.retry };
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  }

  /** Calls a method that answers once, on the server given or on the next in turn. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions,
    only?: Endpoint,
  ): Promise<MessageShape<O>> {
    const tries = this.#tries(isRepeatable(method), options, only);
    for (;;) {
      const { channel } = tries.next();
      try {
        return await unaryOnce(channel, method, request, tries.bounds);
      } catch (error) {
        await tries.afterFailure(error);
      }
    }
  }

  /** Calls a method that answers with a stream. It is tried again, where `repeatable`, until its first message has come. */
  async *stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    options: CallOptions & { readonly timeoutMs: number },
    { only, repeatable }: { only?: Endpoint; repeatable: boolean },
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const tries = this.#tries(repeatable, options, only);
    for (;;) {
      const { channel } = tries.next();
      let hasBegun = false;
      try {
        for await (const message of streamOnce(channel, method, request, tries.bounds)) {
          hasBegun = true;
          yield message;
        }
        return;
      } catch (error) {
        if (hasBegun) {
          throw error;
        }
        await tries.afterFailure(error);
      }
    }
  }

  /** Calls a method with a stream each way, on the next server in turn. It is not tried again: its requests are read once. */
  bidi<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    requests: Requests<I>,
    options: CallOptions & { readonly timeoutMs: number },
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const tries = this.#tries(false, options);
    return bidiOnce(tries.next().channel, method, requests, tries.bounds);
  }

  close(): void {
    this.endpoints.close();
  }

  #tries(repeatable: boolean, { signal, timeoutMs = this.#timeoutMs }: CallOptions, only?: Endpoint): Tries {
    return new Tries(this.endpoints, repeatable ? this.#retry : { ...this.#retry, maxAttempts: 1 }, {
      bounds: new Bounds(timeoutMs, signal, this.endpoints.closed),
      only,
    });
  }
}

function isRepeatable(method: DescMethodUnary): boolean {
  return method.idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS;
}

/** The tries of one call. */
class Tries {
  readonly bounds: Bounds;
  readonly #endpoints: Endpoints;
  readonly #retry: RetryOptions;
  readonly #only: Endpoint | undefined;
  readonly #tried = new Set<Endpoint>();
  #attempt = 0;

  constructor(endpoints: Endpoints, retry: RetryOptions, { bounds, only }: { bounds: Bounds; only?: Endpoint }) {
    this.#endpoints = endpoints;
    this.#retry = retry;
    this.bounds = bounds;
    this.#only = only;
  }

  next(): Endpoint {
    const endpoint = this.#only ?? this.#endpoints.next(this.#tried);
    this.#tried.add(endpoint);
    this.#attempt++;
    return endpoint;
  }

  /** Waits for the next try. Throws the error where there is none. */
  async afterFailure(error: unknown): Promise<void> {
    if (!(error instanceof MetronomeError)) {
      throw error;
    }
    const isAnotherLeft = this.#only === undefined && this.#tried.size < this.#endpoints.all.length;
    const waitMs = pauseMs(this.#attempt, error, this.#retry, isAnotherLeft);
    if (waitMs === undefined || !this.bounds.hasRoomFor(waitMs)) {
      throw error;
    }
    await this.bounds.pause(waitMs);
  }
}
