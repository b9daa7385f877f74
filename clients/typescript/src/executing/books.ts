/**
 * The books of an executor: a table of requests and blocks, told to a scheduler and moved by its plans.
 *
 * For executors that share no blocks between requests and speculate on nothing. The books count; tokens, KV and the device are the
 * engine's. One pass is
 *
 *     const plan = ...                  for books.state(), found good by `planFault`
 *     const work = books.begin(plan)    evicts, rejects, resumes, admits: what there is to copy and to compute
 *     ...                               the forward pass over work.chunks
 *     books.commit(work)                what was computed is there
 */

import { setTimeout as sleep } from "node:timers/promises";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  CountersSchema,
  type GetStateResponse,
  GetStateResponseSchema,
} from "../gen/metronome/executor/v1/executor_pb.js";
import { EvictMode, type ExecutorPlan, Reason } from "../gen/metronome/scheduler/v1/plan_pb.js";
import {
  type ClusterState,
  ClusterStateSchema,
  type ExecutorLimits,
  ExecutorLimitsSchema,
  type ExecutorState,
  ExecutorStateSchema,
  RequestStatus,
} from "../gen/metronome/scheduler/v1/state_pb.js";
import { Refusal } from "../serving.js";
import { requestTable } from "../tables.js";
import { nowUs, type Request } from "./request.js";

const { WAITING, RUNNING, SWAPPED } = RequestStatus;
const RETRY_MS = 1_000;
const POLL_MS = 10;

/** What a plan gives an engine to do, in this order. */
export interface Work {
  /** Whose KV to copy to swap space. */
  readonly swapOut: readonly Request[];
  /** Whose KV to copy back. */
  readonly swapIn: readonly Request[];
  /** Whose tokens to compute from `numComputedTokens` on, and how many. */
  readonly chunks: readonly (readonly [Request, number])[];
}

/** Who is here, and what they hold. */
export class Books {
  readonly limits: ExecutorLimits;
  readonly counters = create(CountersSchema);
  draining = false;
  planningFailure = "";
  readonly #executorId: string;
  readonly #requests = new Map<bigint, Request>();
  #iteration = 1n;
  #lastId = 0n;
  #arrived: () => void = () => undefined;

  /** `limits`: sizes, as the scheduler is told them. */
  constructor(executorId: string, limits: MessageInitShape<typeof ExecutorLimitsSchema>) {
    this.#executorId = executorId;
    this.limits = create(ExecutorLimitsSchema, limits);
  }

  /** Takes a request into the queue. Throws a `Refusal`, and keeps nothing of it. */
  add(request: Request): void {
    const present = this.#present();
    if (this.draining) {
      throw new Refusal("UNAVAILABLE", "DRAINING", "this executor drains", { retryDelayMs: RETRY_MS });
    }
    if (present.some(({ name }) => name === request.name)) {
      const message = `request ${request.name} is here already`;
      throw new Refusal("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID", message, { field: "request_id" });
    }
    const numWaiting = present.filter(({ status }) => status === WAITING).length;
    if (numWaiting >= (this.limits.maxNumWaiting ?? Number.POSITIVE_INFINITY)) {
      const message = `${numWaiting} requests wait, as many as may`;
      throw new Refusal("RESOURCE_EXHAUSTED", "QUEUE_FULL", message, { retryDelayMs: RETRY_MS });
    }
    request.id = ++this.#lastId;
    this.#requests.set(request.id, request);
    this.counters.numAccepted++;
    this.#arrived();
  }

  /** Ends a request whose call is over, if it has not ended by itself. `deadlineMs`: of the call. */
  leave(request: Request, deadlineMs: number): void {
    if (!request.hasEnded) {
      this.counters[Date.now() >= deadlineMs - 100 ? "numExpired" : "numCancelled"]++;
      request.refuse(new Refusal("CANCELLED", "CANCELLED", "its client has left"));
    }
  }

  /** Ends a request by its client's name. Throws a `Refusal` where there is none. */
  cancel(name: string): void {
    const request = this.#present().find((row) => row.name === name);
    if (request === undefined) {
      throw new Refusal("NOT_FOUND", "UNKNOWN_REQUEST_ID", `no request ${name} is here`, { field: "request_id" });
    }
    this.counters.numCancelled++;
    request.refuse(new Refusal("CANCELLED", "CANCELLED", "it was cancelled by its id"));
  }

  /** Lets go of those that have ended, and waits until somebody is there. */
  async somebody(): Promise<void> {
    for (const { id, hasEnded, isFinished } of this.#requests.values()) {
      if (hasEnded) {
        this.counters.numFinished += isFinished ? 1n : 0n;
        this.#requests.delete(id);
      }
    }
    while (this.#requests.size === 0) {
      await new Promise<void>((resolve) => (this.#arrived = resolve));
    }
  }

  /** Takes nothing new from now on, and waits until the last has ended, or the signal says so. */
  async drained(signal?: AbortSignal): Promise<void> {
    this.draining = true;
    while (this.#present().length > 0 && !signal?.aborted) {
      await sleep(POLL_MS);
    }
  }

  /** What the scheduler is told. */
  state(): ExecutorState {
    const rows = [...this.#requests.values()];
    const held = (of: RequestStatus) => rows.reduce((sum, row) => sum + (row.status === of ? row.numBlocks : 0), 0);
    return create(ExecutorStateSchema, {
      executorId: this.#executorId,
      iteration: this.#iteration,
      limits: this.limits,
      numFreeBlocks: this.limits.numBlocks - held(RUNNING),
      numFreeSwapBlocks: this.limits.numSwapBlocks - held(SWAPPED),
      draining: this.draining,
      requests: requestTable({
        id: rows.map((row) => row.id),
        status: rows.map((row) => row.status),
        arrivalTimeUs: rows.map((row) => row.arrivalTimeUs),
        priority: rows.map((row) => row.wanted.priority),
        numPromptTokens: rows.map((row) => row.wanted.prompt.length),
        numOutputTokens: rows.map((row) => row.output.length),
        numComputedTokens: rows.map((row) => row.numComputedTokens),
        maxOutputTokens: rows.map((row) => row.wanted.maxTokens),
        expectedOutputTokens: rows.map((row) => row.wanted.expectedOutputTokens),
        deadlineUs: rows.map((row) => row.deadlineUs),
        numBlocks: rows.map((row) => row.numBlocks),
        numPreemptions: rows.map((row) => row.numPreemptions),
        lastRunIteration: rows.map((row) => row.lastRunIteration),
        timesOvertaken: rows.map((row) => row.timesOvertaken),
      }),
    });
  }

  /** The same, as a request to a scheduler has it: with the clock. */
  cluster(state: ExecutorState = this.state()): ClusterState {
    return create(ClusterStateSchema, { nowUs: nowUs(), executors: [state] });
  }

  /** What `GetState` answers. */
  response(): GetStateResponse {
    const requestNames = [...this.#requests.values()].map(({ id, name }) => ({ id, requestId: name }));
    const { counters, planningFailure } = this;
    return create(GetStateResponseSchema, { state: this.cluster(), requestNames, counters, planningFailure });
  }

  /** Rejects, evicts, resumes, admits, and hands out the blocks of the pass. `planFault` must have found nothing. */
  begin({ evict, reject, resume, admit, scheduled }: ExecutorPlan): Work {
    const row = (id: bigint) => this.#requests.get(id) as Request;
    for (const [i, id] of reject?.id.entries() ?? []) {
      row(id).refuse(rejection(reject?.reason[i] ?? Reason.UNSPECIFIED, reject?.estimatedWaitUs[i] ?? 0n));
      this.counters.numRejected++;
    }
    const admitted = admit?.id ?? [];
    for (const waiting of this.#requests.values()) {
      if (waiting.status === WAITING && !admitted.includes(waiting.id)) {
        waiting.timesOvertaken += admitted.filter((id) => id > waiting.id).length;
      }
    }
    const evicted = [...(evict?.id.entries() ?? [])];
    const swapOut = evicted.filter(([i, id]) => this.#evict(row(id), evict?.mode[i])).map(([, id]) => row(id));
    const swapIn = (resume?.id ?? []).map(row);
    for (const entered of [...swapIn, ...admitted.map(row)]) {
      entered.status = RUNNING;
      entered.firstRunUs ||= nowUs();
    }
    const chunks = (scheduled?.id ?? []).map((id, i) => [row(id), scheduled?.numTokens[i] ?? 0] as const);
    for (const [request, numTokens] of chunks) {
      const needed = Math.ceil((request.numComputedTokens + numTokens) / this.limits.blockSize);
      request.numBlocks = Math.max(request.numBlocks, needed);
      request.lastRunIteration = this.#iteration;
    }
    if ([evict, reject, scheduled].some((table) => table?.id.length)) {
      this.#iteration++;
      this.counters.numIterations++;
    }
    return { swapOut, swapIn, chunks };
  }

  /** The KV of all that there was to compute exists. Tokens of requests that are computed are due now. */
  commit({ chunks }: Work): void {
    for (const [request, numTokens] of chunks) {
      const isDecode = request.output.length > 0 && numTokens === 1;
      this.counters.numPrefillTokens += isDecode ? 0n : BigInt(numTokens);
      request.numComputedTokens += numTokens;
      this.counters.numOutputTokens += request.isComputed ? 1n : 0n;
    }
  }

  #present(): Request[] {
    return [...this.#requests.values()].filter(({ hasEnded }) => !hasEnded);
  }

  /** Whether its KV goes to swap space. */
  #evict(request: Request, mode: EvictMode | undefined): boolean {
    const isSwap = mode === EvictMode.SWAP;
    request.numPreemptions++;
    request.status = isSwap ? SWAPPED : WAITING;
    if (!isSwap) {
      request.numComputedTokens = request.numBlocks = 0;
    }
    this.counters[isSwap ? "numEvictedSwap" : "numEvictedRecompute"]++;
    return isSwap;
  }
}

/** What a request ends with that a plan rejects. */
function rejection(reason: Reason, estimatedWaitUs: bigint): Refusal {
  const { REJECTED_EXCEEDS_BLOCKS, REJECTED_EXCEEDS_MODEL_LEN, REJECTED_DEADLINE } = Reason;
  const isFinal = [REJECTED_EXCEEDS_BLOCKS, REJECTED_EXCEEDS_MODEL_LEN, REJECTED_DEADLINE].includes(reason);
  return new Refusal("RESOURCE_EXHAUSTED", "REJECTED_BY_SCHEDULER", "the scheduler turned it away", {
    metadata: { scheduler_reason: Reason[reason] ?? String(reason) },
    retryDelayMs: isFinal ? undefined : Math.max(RETRY_MS, Number(estimatedWaitUs) / 1000),
  });
}
