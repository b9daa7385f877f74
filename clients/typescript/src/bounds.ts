/** What ends a call before its time: its deadline, its caller's signal, or that the client is closed. */

import { setTimeout as sleep } from "node:timers/promises";

/** Options of every call. */
export interface CallOptions {
  /** Ends the call; it then throws the signal's reason. */
  readonly signal?: AbortSignal;
  /** Most milliseconds that the call may take, tries and all; `Infinity`: no bound. */
  readonly timeoutMs?: number;
}

/** Default of calls that answer at once. */
export const DEFAULT_TIMEOUT_MS = 10_000;

/** Default of a whole answer, and of draining. */
export const DEFAULT_STREAM_TIMEOUT_MS = 600_000;

export class Bounds {
  /** The deadline as gRPC takes it. */
  readonly deadlineMs: number;
  readonly #signals: readonly AbortSignal[];

  /** Throws RangeError where `timeoutMs` is no span of time. */
  constructor(timeoutMs: number, ...signals: readonly (AbortSignal | undefined)[]) {
    if (!(timeoutMs >= 0)) {
      throw new RangeError(`timeoutMs is ${timeoutMs}, it must be at least 0`);
    }
    this.deadlineMs = Date.now() + timeoutMs;
    this.#signals = signals.filter((signal) => signal !== undefined);
  }

  hasRoomFor(spanMs: number): boolean {
    return Date.now() + spanMs < this.deadlineMs;
  }

  /** Throws the reason of the signal that ended the call. */
  throwIfEnded(): void {
    for (const signal of this.#signals) {
      signal.throwIfAborted();
    }
  }

  /** Calls back when a signal ends the call. Returns what undoes it. (`AbortSignal.any` would keep each call in memory.) */
  whenEnded(callback: () => void): () => void {
    for (const signal of this.#signals) {
      signal.addEventListener("abort", callback);
    }
    return () => {
      for (const signal of this.#signals) {
        signal.removeEventListener("abort", callback);
      }
    };
  }

  /** Waits. Throws the reason of the signal that ends it. */
  async pause(spanMs: number): Promise<void> {
    this.throwIfEnded();
    const ended = new AbortController();
    const forget = this.whenEnded(() => ended.abort());
    try {
      await sleep(spanMs, undefined, { signal: ended.signal });
    } catch (error) {
      this.throwIfEnded();
      throw error;
    } finally {
      forget();
    }
  }
}
