/**
 * When a call is tried again: only where the contract allows it (proto/README.md), and not for long.
 *
 * It allows it for UNAVAILABLE, and for RESOURCE_EXHAUSTED where the service says when to come again, for calls without side
 * effects, as the contract marks them, and for `Generate` until its first message, since an executor drops the request of a
 * call that breaks off. The pauses grow and are drawn at random below that ("full jitter"), so that clients that failed
 * together do not come back together.
 */

import type { MetronomeError } from "./errors.js";

export interface RetryOptions {
  /** Tries in all, the first included; 1: none is repeated. */
  readonly maxAttempts: number;
  /** Longest pause before the second try, in milliseconds; it doubles with each try. */
  readonly initialBackoffMs: number;
  /** Longest pause of all, unless the service asks for a longer one. */
  readonly maxBackoffMs: number;
}

export const DEFAULT_RETRY: RetryOptions = { maxAttempts: 5, initialBackoffMs: 100, maxBackoffMs: 5_000 };

/** Where the same request may get another answer: nowhere, at another address alone, or there and here, later. */
export type Remedy = "none" | "elsewhere" | "anywhere";

export function remedyOf(error: MetronomeError): Remedy {
  switch (error.code) {
    case "UNAVAILABLE":
      return error.reason === "DRAINING" ? "elsewhere" : "anywhere";
    case "RESOURCE_EXHAUSTED":
      return error.retryDelayMs === undefined ? "none" : "anywhere";
    default:
      return "none";
  }
}

/**
 * How long to wait after the given try (from 1), in milliseconds; undefined: no other try.
 *
 * At once where an address is left that was not tried. Otherwise at least what the service asked for, and a random part of
 * the backoff. Source: "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
 */
export function pauseMs(
  attempt: number,
  error: MetronomeError,
  retry: RetryOptions,
  isAnotherLeft: boolean,
  random: () => number = Math.random,
): number | undefined {
  const remedy = remedyOf(error);
  if (remedy === "none" || attempt >= retry.maxAttempts) {
    return undefined;
  }
  if (isAnotherLeft) {
    return 0;
  }
  if (remedy === "elsewhere") {
    return undefined;
  }
  const backoffMs = Math.min(retry.maxBackoffMs, retry.initialBackoffMs * 2 ** (attempt - 1));
  return (error.retryDelayMs ?? 0) + backoffMs * random();
}
