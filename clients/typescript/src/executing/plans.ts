/**
 * What an executor of your own needs besides its engine: whether a plan can be carried out, and what to run without one.
 *
 * A plan is never trusted with memory: it is checked against the state that it was asked for, and carried out as a whole or
 * not at all. Both functions look at the state alone, and change nothing.
 */

import { create } from "@bufbuild/protobuf";
import { EvictMode, type ExecutorPlan, ExecutorPlanSchema, Reason } from "../gen/metronome/scheduler/v1/plan_pb.js";
import { type ExecutorState, RequestStatus } from "../gen/metronome/scheduler/v1/state_pb.js";

interface Row {
  readonly id: bigint;
  readonly status: RequestStatus;
  readonly numComputed: number;
  /** Tokens whose KV does not exist yet, the newest one included. */
  readonly numLacking: number;
  readonly numBlocks: number;
  readonly numShared: number;
}

/** Why an executor that is in this state must refuse this plan, a sentence; undefined: it can carry it out. */
export function planFault(state: ExecutorState, plan: ExecutorPlan | undefined): string | undefined {
  if (plan === undefined) {
    return "there is no plan";
  }
  if (plan.executorId !== state.executorId || plan.iteration !== state.iteration) {
    return `it is for pass ${plan.iteration} of ${plan.executorId}, not for pass ${state.iteration} of ${state.executorId}`;
  }
  const rows = rowsOf(state);
  return tableFault(plan) ?? movesFault(plan, rows) ?? runFault(plan, rows, state) ?? swapFault(plan, rows, state);
}

/**
 * What to run when no scheduler has a plan: those that began go on as far as tokens and blocks reach, and nobody new starts.
 *
 * Where nobody can go on the last to arrive makes room. Requests are taken to stand in the order of arrival.
 */
export function safePlan(state: ExecutorState): ExecutorPlan {
  const { executorId, iteration, limits } = state;
  const plan = create(ExecutorPlanSchema, { executorId, iteration, scheduled: {}, resume: {}, evict: {} });
  const rows = [...rowsOf(state).values()];
  const running = rows.filter(({ status }) => status === RequestStatus.RUNNING);
  const swapped = rows.filter(({ status }) => status === RequestStatus.SWAPPED);
  let budget = limits?.maxNumBatchedTokens ?? 0;
  let free = state.numFreeBlocks;
  while (running.length > 1 && running.every((row) => blocksFor(row, 1, state) > free)) {
    const victim = running.pop() as Row;
    plan.evict?.id.push(victim.id);
    plan.evict?.mode.push(EvictMode.RECOMPUTE);
    plan.evict?.reason.push(Reason.EVICTED_OUT_OF_BLOCKS);
    free += victim.numBlocks - victim.numShared;
  }
  let numSeqs = running.length + rows.filter(({ status }) => status === RequestStatus.LOADING).length;
  for (const row of [...running, ...(plan.evict?.id.length ? [] : swapped)]) {
    const isSwapped = row.status === RequestStatus.SWAPPED;
    const numTokens = Math.min(row.numLacking, budget);
    const needed = blocksFor(row, numTokens, state);
    if (numTokens < 1 || needed > free || (isSwapped && numSeqs >= (limits?.maxNumSeqs ?? 0))) {
      continue;
    }
    if (isSwapped) {
      plan.resume?.id.push(row.id);
      plan.resume?.reason.push(Reason.RESUMED);
      numSeqs++;
    }
    plan.scheduled?.id.push(row.id);
    plan.scheduled?.numTokens.push(numTokens);
    plan.scheduled?.reason.push(row.numLacking === 1 ? Reason.DECODE : Reason.PREFILL);
    budget -= numTokens;
    free -= needed;
  }
  return plan;
}

function tableFault({ scheduled, admit, resume, evict, reject }: ExecutorPlan): string | undefined {
  const isUneven =
    scheduled?.id.length !== scheduled?.numTokens.length ||
    evict?.id.length !== evict?.mode.length ||
    reject?.id.length !== reject?.reason.length;
  const moved = [admit, resume, evict, reject].flatMap((table) => table?.id ?? []);
  const gone = new Set([...(evict?.id ?? []), ...(reject?.id ?? [])]);
  const ids = scheduled?.id ?? [];
  if (isUneven) {
    return "its columns are of unequal length";
  }
  const isTwice =
    new Set(moved).size < moved.length || new Set(ids).size < ids.length || ids.some((id) => gone.has(id));
  return isTwice ? "a request has two fates in it" : undefined;
}

function movesFault(plan: ExecutorPlan, rows: ReadonlyMap<bigint, Row>): string | undefined {
  const { WAITING, RUNNING, SWAPPED } = RequestStatus;
  for (const [table, status] of [
    [plan.evict, RUNNING],
    [plan.reject, WAITING],
    [plan.resume, SWAPPED],
    [plan.admit, WAITING],
  ] as const) {
    const stranger = table?.id.find((id) => rows.get(id)?.status !== status);
    if (stranger !== undefined) {
      return `request ${stranger} is not ${RequestStatus[status]}`;
    }
  }
  return plan.evict?.mode.some((mode) => mode !== EvictMode.SWAP && mode !== EvictMode.RECOMPUTE)
    ? "it evicts to nowhere"
    : undefined;
}

function runFault(plan: ExecutorPlan, rows: ReadonlyMap<bigint, Row>, state: ExecutorState): string | undefined {
  const evicted = new Set(plan.evict?.id);
  const entered = [...(plan.resume?.id ?? []), ...(plan.admit?.id ?? [])].map((id) => rows.get(id) as Row);
  const staying = [...rows.values()].filter(({ id, status }) => status === RequestStatus.RUNNING && !evicted.has(id));
  const loading = [...rows.values()].filter(({ status }) => status === RequestStatus.LOADING);
  const running = new Map([...staying, ...entered].map((row) => [row.id, row]));
  let free = state.numFreeBlocks;
  for (const id of evicted) {
    const row = rows.get(id) as Row;
    free += row.numBlocks - row.numShared;
  }
  for (const row of entered) {
    free -= row.status === RequestStatus.SWAPPED ? row.numBlocks : row.numBlocks - row.numShared;
  }
  let numBatched = 0;
  for (const [i, id] of (plan.scheduled?.id ?? []).entries()) {
    const row = running.get(id);
    const numTokens = plan.scheduled?.numTokens[i] ?? 0;
    if (row === undefined || numTokens < 1 || numTokens > row.numLacking) {
      return `request ${id} cannot run ${numTokens} tokens`;
    }
    free -= blocksAfter(row, numTokens, state) - row.numBlocks;
    numBatched += numTokens;
  }
  const { maxNumBatchedTokens = 0, maxNumSeqs = 0 } = state.limits ?? {};
  if (numBatched > maxNumBatchedTokens) {
    return `it runs ${numBatched} tokens, at most ${maxNumBatchedTokens} may`;
  }
  const numSeqs = running.size + loading.length;
  if (numSeqs > maxNumSeqs) {
    return `it runs ${numSeqs} requests, at most ${maxNumSeqs} may`;
  }
  return free < 0 ? `it lacks ${-free} blocks` : undefined;
}

function swapFault({ evict }: ExecutorPlan, rows: ReadonlyMap<bigint, Row>, state: ExecutorState): string | undefined {
  const swapped = (evict?.id ?? []).filter((_, i) => evict?.mode[i] === EvictMode.SWAP);
  const needed = swapped.reduce((sum, id) => sum + (rows.get(id)?.numBlocks ?? 0), 0);
  return needed > state.numFreeSwapBlocks
    ? `it swaps out ${needed} blocks, ${state.numFreeSwapBlocks} are free`
    : undefined;
}

function rowsOf({ requests }: ExecutorState): ReadonlyMap<bigint, Row> {
  const rows = (requests?.id ?? []).map((id, i): [bigint, Row] => {
    const numComputed = requests?.numComputedTokens[i] ?? 0;
    const numTokens = (requests?.numPromptTokens[i] ?? 0) + (requests?.numOutputTokens[i] ?? 0);
    const numDrafts = requests?.numDraftTokens[i] ?? 0;
    return [
      id,
      {
        id,
        status: requests?.status[i] ?? RequestStatus.UNSPECIFIED,
        numComputed,
        numLacking: numTokens - numComputed + numDrafts,
        numBlocks: requests?.numBlocks[i] ?? 0,
        numShared: requests?.numSharedBlocks[i] ?? 0,
      },
    ];
  });
  return new Map(rows);
}

/** A request never holds fewer blocks than before. */
function blocksAfter(row: Row, numTokens: number, { limits }: ExecutorState): number {
  return Math.max(row.numBlocks, Math.ceil((row.numComputed + numTokens) / (limits?.blockSize ?? 1)));
}

/** Free blocks that computing so many tokens takes up; one that is swapped comes back with what it holds. */
function blocksFor(row: Row, numTokens: number, state: ExecutorState): number {
  return blocksAfter(row, numTokens, state) - (row.status === RequestStatus.RUNNING ? row.numBlocks : 0);
}
