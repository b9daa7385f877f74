/**
 * The events of an answer: one `started`, then `delta`s, then one `finished` for each answer.
 *
 * Heartbeats of the contract are not among them, unless they say what keeps the request waiting.
 */

import {
  type Delta as DeltaMessage,
  type Finished as FinishedMessage,
  FinishReason as FinishReasonValue,
  type GenerateResponse,
  type TokenLogprobs as TokenLogprobsMessage,
} from "./gen/metronome/inference/v1/inference_pb.js";

/** Why an answer ended. "other": a reason that this client is too old to know. */
export type FinishReason = "stop" | "length" | "other";

/** The request is in the queue. `maxTokens` and `seed` are the ones in force, drawn or given. */
export interface Started {
  readonly kind: "started";
  readonly requestId: string;
  readonly numPromptTokens: number;
  readonly maxTokens: number;
  readonly seed: bigint;
}

/** The log-probabilities at one position: of the token there, and of the most likely ones, best first. */
export interface TokenLogprobs {
  readonly logprob: number;
  readonly topTokenIds: readonly number[];
  readonly topLogprobs: readonly number[];
}

/**
 * More of the answer. `text` holds whole characters and may be empty while one is incomplete.
 *
 * `logprobs` are those of `tokenIds`; `promptLogprobs`, in the first delta alone, those of the prompt, whose first token has
 * none. Both are empty unless asked for.
 */
export interface Delta {
  readonly kind: "delta";
  readonly text: string;
  readonly tokenIds: readonly number[];
  readonly index: number;
  readonly logprobs: readonly TokenLogprobs[];
  readonly promptLogprobs: readonly (TokenLogprobs | null)[];
}

/** What a request took; times in microseconds from its arrival at the executor. */
export interface Usage {
  readonly numPromptTokens: number;
  readonly numOutputTokens: number;
  readonly numCachedTokens: number;
  readonly numPreemptions: number;
  readonly queueTimeUs: number;
  readonly timeToFirstTokenUs: number;
  readonly totalTimeUs: number;
}

/** The answer is complete. `matchedStop` is the stop string that ended it, or empty. */
export interface Finished {
  readonly kind: "finished";
  readonly reason: FinishReason;
  readonly usage: Usage;
  readonly matchedStop: string;
  readonly index: number;
}

/** Something besides its turn keeps the request waiting: `detail` says what, in a sentence for people. */
export interface Waiting {
  readonly kind: "waiting";
  readonly detail: string;
  readonly numAhead: number;
}

export type Event = Started | Delta | Finished | Waiting;

/** Reads one message of the stream; undefined for one that says nothing new. */
export function eventFromMessage({ event }: GenerateResponse): Event | undefined {
  switch (event.case) {
    case "started": {
      const { requestId, numPromptTokens, maxTokens, sampling } = event.value;
      return { kind: "started", requestId, numPromptTokens, maxTokens, seed: sampling?.seed ?? 0n };
    }
    case "delta":
      return delta(event.value);
    case "finished":
      return finished(event.value);
    case "heartbeat": {
      const { detail, numAhead } = event.value;
      return detail === "" ? undefined : { kind: "waiting", detail, numAhead };
    }
    default: // an event of a later version of the contract
      return undefined;
  }
}

function delta(message: DeltaMessage): Delta {
  return {
    kind: "delta",
    text: message.text,
    tokenIds: message.tokenIds,
    index: message.index,
    logprobs: message.logprobs.map(logprobs),
    promptLogprobs: message.promptLogprobs.map((told, position) => (position === 0 ? null : logprobs(told))),
  };
}

function logprobs({ logprob, topTokenIds, topLogprobs }: TokenLogprobsMessage): TokenLogprobs {
  return { logprob, topTokenIds, topLogprobs };
}

function finished({ finishReason, usage, matchedStop, index }: FinishedMessage): Finished {
  return {
    kind: "finished",
    reason: FINISH_REASONS.get(finishReason) ?? "other",
    usage: {
      numPromptTokens: usage?.numPromptTokens ?? 0,
      numOutputTokens: usage?.numOutputTokens ?? 0,
      numCachedTokens: usage?.numCachedTokens ?? 0,
      numPreemptions: usage?.numPreemptions ?? 0,
      queueTimeUs: Number(usage?.queueTimeUs ?? 0),
      timeToFirstTokenUs: Number(usage?.timeToFirstTokenUs ?? 0),
      totalTimeUs: Number(usage?.totalTimeUs ?? 0),
    },
    matchedStop,
    index,
  };
}

const FINISH_REASONS: ReadonlyMap<FinishReasonValue, FinishReason> = new Map([
  [FinishReasonValue.STOP, "stop"],
  [FinishReasonValue.LENGTH, "length"],
]);
