/** One request: a row of the books, and what its stream has to say. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  FinishReason,
  type GenerateRequest,
  type GenerateResponseSchema,
  SamplingParametersSchema,
} from "@metronome-llm/client/inference/v1";
import { RequestStatus } from "@metronome-llm/client/scheduler/v1";
import { Refusal } from "@metronome-llm/client/serving";
import { LIMITS, nextToken, textOf } from "./model.mjs";

export type Outcome = { finishReason: FinishReason; matchedStop: string } | Refusal;

export class Request {
  readonly output: number[] = [];
  readonly arrivalTimeUs = BigInt(Date.now()) * 1000n;
  status = RequestStatus.WAITING;
  numComputed = 0;
  numPreemptions = 0;
  lastRun = 0n;
  timesOvertaken = 0;
  outcome?: Outcome; // the first one counts; the books let go of it before the next pass
  wake: () => void = () => undefined;

  constructor(
    readonly id: bigint,
    readonly name: string,
    readonly prompt: readonly number[],
    readonly message: GenerateRequest,
    readonly seed: bigint,
    readonly maxTokens: number,
    readonly deadlineMs: number,
  ) {}

  get numTokens(): number {
    return this.prompt.length + this.output.length;
  }

  get numBlocks(): number {
    return Math.ceil(this.numComputed / LIMITS.blockSize);
  }

  end(outcome: Outcome): void {
    this.outcome ??= outcome;
    this.wake();
  }

  /** Takes its next token, and ends where it must. */
  generate(): void {
    const { temperature } = this.message.sampling ?? {};
    this.output.push(nextToken([...this.prompt, ...this.output], temperature === 0 ? 0n : this.seed));
    const { stop = [], stopTokenIds = [], minTokens = 0 } = this.message.stopping ?? {};
    const [matchedStop = ""] = stop
      .filter((one) => this.#stopAt(one) >= 0)
      .sort((a, b) => this.#stopAt(a) - this.#stopAt(b));
    const isStop = matchedStop !== "" || stopTokenIds.includes(this.output.at(-1) as number);
    if (isStop && this.output.length >= minTokens) {
      this.end({ finishReason: FinishReason.STOP, matchedStop });
    } else if (this.output.length >= this.maxTokens) {
      this.end({ finishReason: FinishReason.LENGTH, matchedStop: "" });
    }
    this.wake();
  }

  /** Where a stop string first stands, after the tokens that there must be. */
  #stopAt(stop: string): number {
    const least = Math.max(0, (this.message.stopping?.minTokens ?? 0) - 1);
    return textOf(this.output).indexOf(stop, textOf(this.output.slice(0, least)).length);
  }

  /** Text that can be sent: no stop string, and nothing that one may begin with. */
  text(): string {
    const text = this.message.output?.omitText ? "" : textOf(this.output);
    if (this.outcome === undefined) {
      const longest = Math.max(1, ...(this.message.stopping?.stop ?? []).map((one) => one.length));
      return text.slice(0, Math.max(0, text.length - longest + 1));
    }
    const matchedStop = this.outcome instanceof Refusal ? "" : this.outcome.matchedStop;
    return matchedStop === "" ? text : text.slice(0, this.#stopAt(matchedStop));
  }

  /** The events of its answer. */
  async *events(): AsyncGenerator<MessageInitShape<typeof GenerateResponseSchema>> {
    const { id: _, name: requestId, prompt, maxTokens, seed } = this;
    const given = this.message.sampling ?? create(SamplingParametersSchema);
    const sampling = { temperature: 1, topP: 1, repetitionPenalty: 1, n: 1, ...given, seed };
    let [sequence, numTokens, numCharacters] = [0n, 0, 0];
    yield {
      event: { case: "started", value: { requestId, numPromptTokens: prompt.length, sampling, maxTokens } },
    } as const;
    for (;;) {
      if (this.outcome === undefined && this.output.length === numTokens) {
        await new Promise<void>((resolve) => (this.wake = resolve));
        continue;
      }
      const { outcome } = this;
      const value = { text: this.text().slice(numCharacters), tokenIds: this.output.slice(numTokens) };
      [numTokens, numCharacters] = [this.output.length, numCharacters + value.text.length];
      if (value.tokenIds.length > 0 || value.text !== "") {
        yield { sequence: ++sequence, event: { case: "delta", value } } as const;
      }
      if (outcome instanceof Refusal) {
        throw outcome;
      }
      if (outcome !== undefined) {
        const usage = {
          numPromptTokens: prompt.length,
          numOutputTokens: numTokens,
          numPreemptions: this.numPreemptions,
        };
        yield { sequence: ++sequence, event: { case: "finished", value: { ...outcome, usage } } } as const;
        return;
      }
    }
  }
}
