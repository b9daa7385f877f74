/**
 * The books, and what becomes of them pass by pass: ask for a plan, check it, carry it out, compute, ask again.
 *
 * A plan is asked for after the pass before; an engine that is in a hurry asks while it computes, for the state that the pass
 * will leave.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { MetronomeError, requestTable, type SchedulerClient } from "@metronome-llm/client";
import { planFault, safePlan } from "@metronome-llm/client/executing";
import type { GenerateRequest } from "@metronome-llm/client/inference/v1";
import {
  EvictMode,
  type ExecutorPlan,
  ExecutorStateSchema,
  Reason,
  RequestStatus,
} from "@metronome-llm/client/scheduler/v1";
import { Refusal } from "@metronome-llm/client/serving";
import { checked } from "./checks.mjs";
import { LIMITS } from "./model.mjs";
import { Request } from "./request.mjs";

const RETRY_MS = 1_000;
const { WAITING, RUNNING, SWAPPED } = RequestStatus;

/** The books, and what becomes of them pass by pass. */
export class Executor {
  readonly requests = new Map<bigint, Request>();
  readonly counters = {
    ...{ numIterations: 0n, numAccepted: 0n, numFinished: 0n, numCancelled: 0n, numExpired: 0n, numRejected: 0n },
    ...{ numOutputTokens: 0n, numEvictedSwap: 0n, numEvictedRecompute: 0n },
    ...{ numSafePlans: 0n, numRefusedPlans: 0n, numPlanFailures: 0n },
  };
  planningFailure = "";
  draining = false;
  #iteration = 1n;
  #lastId = 0n;
  #wake: () => void = () => undefined;

  constructor(
    readonly executorId: string,
    readonly scheduler: SchedulerClient,
  ) {}

  /** What the scheduler is told. */
  state() {
    const rows = [...this.requests.values()];
    const held = (status: RequestStatus) =>
      rows.reduce((sum, row) => sum + (row.status === status ? row.numBlocks : 0), 0);
    return create(ExecutorStateSchema, {
      executorId: this.executorId,
      iteration: this.#iteration,
      limits: LIMITS,
      numFreeBlocks: LIMITS.numBlocks - held(RUNNING),
      numFreeSwapBlocks: LIMITS.numSwapBlocks - held(SWAPPED),
      draining: this.draining,
      requests: requestTable({
        id: rows.map((row) => row.id),
        status: rows.map((row) => row.status),
        arrivalTimeUs: rows.map((row) => row.arrivalTimeUs),
        priority: rows.map((row) => row.message.priority),
        numPromptTokens: rows.map((row) => row.prompt.length),
        numOutputTokens: rows.map((row) => row.output.length),
        numComputedTokens: rows.map((row) => row.numComputed),
        maxOutputTokens: rows.map((row) => row.maxTokens),
        expectedOutputTokens: rows.map((row) => row.message.expectedOutputTokens),
        deadlineUs: rows.map((row) =>
          row.deadlineMs === Number.POSITIVE_INFINITY ? 0 : Math.round(row.deadlineMs * 1000),
        ),
        numBlocks: rows.map((row) => row.numBlocks),
        numPreemptions: rows.map((row) => row.numPreemptions),
        lastRunIteration: rows.map((row) => row.lastRun),
        timesOvertaken: rows.map((row) => row.timesOvertaken),
      }),
    });
  }

  /** Takes a request, or throws what refuses it; nothing is kept of one that is refused. */
  accept(message: GenerateRequest, deadlineMs: number): Request {
    if (this.draining) {
      throw new Refusal("UNAVAILABLE", "DRAINING", "this executor drains", { retryDelayMs: RETRY_MS });
    }
    const { prompt, maxTokens } = checked(message);
    if (this.named(message.requestId) !== undefined) {
      throw new Refusal("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID", "it is in this executor", { field: "request_id" });
    }
    if ([...this.requests.values()].filter(({ status }) => status === WAITING).length >= LIMITS.maxNumWaiting) {
      throw new Refusal("RESOURCE_EXHAUSTED", "QUEUE_FULL", "the queue is full", { retryDelayMs: RETRY_MS });
    }
    const name = message.requestId || crypto.randomUUID();
    const seed = message.sampling?.seed ?? BigInt(Math.floor(Math.random() * 2 ** 32));
    const request = new Request(++this.#lastId, name, prompt, message, seed, maxTokens, deadlineMs);
    this.requests.set(request.id, request);
    this.counters.numAccepted++;
    this.#wake();
    return request;
  }

  named(name: string): Request | undefined {
    return [...this.requests.values()].find((request) => request.name === name && request.outcome === undefined);
  }

  /** Pass after pass, while there is something to do. */
  async run(): Promise<never> {
    for (;;) {
      for (const { id, outcome } of this.requests.values()) {
        if (outcome !== undefined) {
          this.requests.delete(id);
          this.counters.numFinished += outcome instanceof Refusal ? 0n : 1n;
        }
      }
      if (this.requests.size === 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      const plan = await this.#plan();
      this.#apply(plan);
      await sleep(plan.scheduled?.id.length ? 1 : 10); // yours takes this time for its forward pass
    }
  }

  /** The plan of the next pass: the scheduler's, or the safe one where it has none that can be carried out. */
  async #plan(): Promise<ExecutorPlan> {
    const state = this.state();
    try {
      const { plans } = await this.scheduler.plan(
        { state: { nowUs: nowUs(), executors: [state] } },
        { timeoutMs: 1_000 },
      );
      const fault = planFault(state, plans[0]);
      this.planningFailure = "";
      if (plans[0] !== undefined && fault === undefined) {
        return plans[0];
      }
      console.error(`refused the plan of pass ${state.iteration}: ${fault}`);
      this.counters.numRefusedPlans++;
    } catch (error) {
      if (!(error instanceof MetronomeError)) {
        throw error;
      }
      this.planningFailure = error.message;
      this.counters.numPlanFailures++;
    }
    this.counters.numSafePlans++;
    return safePlan(state);
  }

  /** Carries a plan out: evict, reject, resume, admit, then one pass over all that is scheduled. */
  #apply({ evict, reject, resume, admit, scheduled }: ExecutorPlan): void {
    const row = (id: bigint) => this.requests.get(id) as Request; // the plan was checked
    for (const [i, id] of evict?.id.entries() ?? []) {
      const isSwap = evict?.mode[i] === EvictMode.SWAP;
      row(id).status = isSwap ? SWAPPED : WAITING;
      row(id).numComputed *= isSwap ? 1 : 0;
      row(id).numPreemptions++;
      this.counters[isSwap ? "numEvictedSwap" : "numEvictedRecompute"]++;
    }
    for (const [i, id] of reject?.id.entries() ?? []) {
      this.counters.numRejected++;
      row(id).end(rejection(reject?.reason[i] ?? Reason.UNSPECIFIED, reject?.estimatedWaitUs[i] ?? 0n));
    }
    for (const id of [...(resume?.id ?? []), ...(admit?.id ?? [])]) {
      row(id).status = RUNNING;
    }
    for (const waiting of this.requests.values()) {
      waiting.timesOvertaken +=
        waiting.status === WAITING ? (admit?.id ?? []).filter((id) => id > waiting.id).length : 0;
    }
    for (const [i, id] of scheduled?.id.entries() ?? []) {
      row(id).numComputed += scheduled?.numTokens[i] ?? 0;
      row(id).lastRun = this.#iteration;
      if (row(id).numComputed === row(id).numTokens && row(id).outcome === undefined) {
        row(id).generate();
        this.counters.numOutputTokens++;
      }
    }
    if ([evict, reject, scheduled].some((table) => table?.id.length)) {
      this.#iteration++;
      this.counters.numIterations++;
    }
  }
}

function rejection(reason: Reason, waitUs: bigint): Refusal {
  const isFinal = [
    Reason.REJECTED_EXCEEDS_BLOCKS,
    Reason.REJECTED_EXCEEDS_MODEL_LEN,
    Reason.REJECTED_DEADLINE,
  ].includes(reason);
  const retryDelayMs = isFinal ? undefined : Math.max(RETRY_MS, Number(waitUs) / 1000);
  const metadata = { scheduler_reason: Reason[reason] ?? String(reason) };
  return new Refusal("RESOURCE_EXHAUSTED", "REJECTED_BY_SCHEDULER", "the scheduler turned it away", {
    metadata,
    retryDelayMs,
  });
}

function nowUs(): bigint {
  return BigInt(Date.now()) * 1000n;
}
