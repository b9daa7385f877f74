/** A request: its row of the books, and the stream that its tokens go to. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  FinishReason,
  type GenerateResponse,
  GenerateResponseSchema,
} from "../gen/metronome/inference/v1/inference_pb.js";
import { RequestStatus } from "../gen/metronome/scheduler/v1/state_pb.js";
import { Refusal } from "../serving.js";
import type { Wanted } from "./wanted.js";

type Event = MessageInitShape<typeof GenerateResponseSchema>["event"];

/** Has the columns of the contract's `RequestTable` by their names; `Books` keeps them. Extend it with what is yours. */
export class Request {
  readonly wanted: Wanted;
  id = 0n; // the books give it
  status = RequestStatus.WAITING;
  readonly arrivalTimeUs = nowUs();
  /** 0n: none. */
  readonly deadlineUs: bigint;
  numComputedTokens = 0;
  numBlocks = 0;
  numPreemptions = 0;
  lastRunIteration = 0n;
  timesOvertaken = 0;
  firstRunUs = 0n;
  readonly output: number[] = [];
  #firstTokenUs = 0n;
  #text = "";
  #numSent = 0;
  #numUnsearched = 0;
  #end: "finished" | Refusal | undefined;
  readonly #events: Event[] = [];
  #wake: () => void = () => undefined;

  /** `deadlineMs`: when the call's deadline passes, in Unix milliseconds; `Infinity`: never. */
  constructor(wanted: Wanted, { deadlineMs = Number.POSITIVE_INFINITY }: { deadlineMs?: number } = {}) {
    this.wanted = wanted;
    this.deadlineUs = Number.isFinite(deadlineMs) ? BigInt(Math.round(deadlineMs)) * 1000n : 0n;
  }

  /** What its client calls it. */
  get name(): string {
    return this.wanted.name;
  }

  /** Prompt and output. */
  get tokens(): readonly number[] {
    return [...this.wanted.prompt, ...this.output];
  }

  get numTokens(): number {
    return this.wanted.prompt.length + this.output.length;
  }

  /** Whether all its tokens have KV, so that the next one is due. */
  get isComputed(): boolean {
    return this.numComputedTokens === this.numTokens;
  }

  get hasEnded(): boolean {
    return this.#end !== undefined;
  }

  /** Whether it ended with a whole answer. */
  get isFinished(): boolean {
    return this.#end === "finished";
  }

  /**
   * Takes and tells the next token; the answer ends with it where it must.
   *
   * `text`: what it adds, whole characters. `isEnd`: it is an end token, whose text is not sent. One that comes after the end is
   * dropped.
   */
  append(token: number, text: string, { isEnd = false }: { isEnd?: boolean } = {}): void {
    if (this.hasEnded) {
      return;
    }
    this.output.push(token);
    this.#firstTokenUs ||= nowUs();
    this.#text += isEnd ? "" : text;
    const { stop, start } = this.#stop();
    const isLast = isEnd || stop !== "" || this.output.length === this.wanted.maxTokens;
    const end = isLast ? start : start - this.#numHeldBack();
    const sent = this.wanted.omitText ? "" : this.#text.slice(this.#numSent, end);
    this.#numSent = Math.max(end, this.#numSent);
    this.#tell({ case: "delta", value: { text: sent, tokenIds: [token] } });
    if (isLast) {
      const finishReason = isEnd || stop !== "" ? FinishReason.STOP : FinishReason.LENGTH;
      this.#tell({ case: "finished", value: { finishReason, matchedStop: stop, usage: this.#usage() } });
      this.#end = "finished";
    }
  }

  /** Ends it with an error. The first end counts. */
  refuse(error: Refusal): void {
    this.#end ??= error;
    this.#wake();
  }

  /** The messages of its stream: numbered, `started` first, `finished` last. Throws what it was refused with. */
  async *events(): AsyncGenerator<GenerateResponse> {
    const { name: requestId, prompt, sampling, maxTokens } = this.wanted;
    const value = { requestId, numPromptTokens: prompt.length, sampling, maxTokens };
    yield create(GenerateResponseSchema, { event: { case: "started", value } });
    for (let sequence = 1n; ; sequence++) {
      while (this.#events.length === 0) {
        if (this.#end instanceof Refusal) {
          throw this.#end;
        }
        if (this.#end === "finished") {
          return;
        }
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
      yield create(GenerateResponseSchema, { sequence, event: this.#events.shift() as Event });
    }
  }

  #tell(event: Event): void {
    this.#events.push(event);
    this.#wake();
  }

  #usage() {
    return {
      numPromptTokens: this.wanted.prompt.length,
      numOutputTokens: this.output.length,
      numPreemptions: this.numPreemptions,
      queueTimeUs: this.firstRunUs - this.arrivalTimeUs,
      timeToFirstTokenUs: this.#firstTokenUs - this.arrivalTimeUs,
      totalTimeUs: nowUs() - this.arrivalTimeUs,
    };
  }

  /** The stop string that appears first, and where; "" and the end of the text where there is none. */
  #stop(): { stop: string; start: number } {
    if (this.output.length < this.wanted.minTokens) {
      this.#numUnsearched = this.#text.length;
    }
    let first = { stop: "", start: this.#text.length };
    for (const stop of [...this.wanted.stop].sort()) {
      const start = this.#text.indexOf(stop, this.#numUnsearched);
      if (start >= 0 && start < first.start) {
        first = { stop, start };
      }
    }
    return first;
  }

  /** Characters at the end that may become a stop string yet. */
  #numHeldBack(): number {
    const text = this.#text.slice(this.#numUnsearched);
    for (let n = Math.max(0, ...this.wanted.stop.map((stop) => stop.length - 1)); n > 0; n--) {
      if (this.wanted.stop.some((stop) => stop.length > n && text.endsWith(stop.slice(0, n)))) {
        return n;
      }
    }
    return 0;
  }
}

/** Unix time in microseconds. */
export function nowUs(): bigint {
  return BigInt(Date.now()) * 1000n;
}
