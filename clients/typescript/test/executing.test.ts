import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import {
  EvictMode,
  ExecutorPlanSchema,
  type ExecutorState,
  ExecutorStateSchema,
  Invariant,
  Reason,
  RequestStatus,
  type ScheduledTableSchema,
} from "../src/contract/scheduler.js";
import { planFault, safePlan } from "../src/executing.js";
import { requestTable, SchedulerClient } from "../src/index.js";
import { SCHEDULER } from "./services.js";

const { RUNNING, WAITING, SWAPPED, LOADING } = RequestStatus;

const LIMITS = {
  maxNumBatchedTokens: 32,
  maxNumSeqs: 3,
  blockSize: 16,
  numBlocks: 8,
  numSwapBlocks: 2,
  maxModelLen: 128,
};

// 1 decodes and needs a block for its next token, 2 is in its prompt, 3 waits, 4 is swapped.
const CONTENT = {
  executorId: "e",
  iteration: 7n,
  limits: LIMITS,
  numFreeBlocks: 5,
  numFreeSwapBlocks: 1,
  requests: requestTable({
    id: [1, 2, 3, 4],
    status: [RUNNING, RUNNING, WAITING, SWAPPED],
    numPromptTokens: [31, 40, 20, 10],
    numOutputTokens: [2, 0, 0, 3],
    numComputedTokens: [32, 16, 0, 12],
    numBlocks: [2, 1, 0, 1],
  }),
};
const STATE = stateWith({});

function stateWith(changes: Partial<Pick<typeof CONTENT, "limits" | "numFreeBlocks" | "requests">>): ExecutorState {
  return create(ExecutorStateSchema, { ...CONTENT, ...changes });
}

function faultOf(plan: MessageInitShape<typeof ExecutorPlanSchema>, state = STATE): string | undefined {
  return planFault(state, create(ExecutorPlanSchema, { executorId: "e", iteration: 7n, ...plan }));
}

function run(...rows: readonly [number, number][]): MessageInitShape<typeof ScheduledTableSchema> {
  return { id: rows.map(([id]) => BigInt(id)), numTokens: rows.map(([, numTokens]) => numTokens) };
}

describe("a plan", () => {
  const good: [string, MessageInitShape<typeof ExecutorPlanSchema>][] = [
    ["runs nobody", {}],
    ["runs a decode and a chunk", { scheduled: run([1, 1], [2, 24]) }],
    ["admits", { admit: { id: [3n] }, scheduled: run([3, 20]) }],
    ["resumes", { resume: { id: [4n] }, scheduled: run([4, 1]) }],
    ["evicts by recompute", { evict: { id: [1n], mode: [EvictMode.RECOMPUTE] }, scheduled: run([2, 24]) }],
    ["evicts by swap", { evict: { id: [2n], mode: [EvictMode.SWAP] } }],
    ["rejects", { reject: { id: [3n], reason: [Reason.REJECTED_QUEUE_FULL] } }],
  ];
  for (const [name, plan] of good) {
    it(`that ${name} can be carried out`, () => assert.equal(faultOf(plan), undefined));
  }

  const bad: [string, MessageInitShape<typeof ExecutorPlanSchema>, RegExp][] = [
    ["is stale", { iteration: 6n }, /pass 6 of e/],
    ["is another's", { executorId: "f" }, /of f/],
    ["runs a stranger", { scheduled: run([9, 1]) }, /9 cannot run/],
    ["runs who waits", { scheduled: run([3, 1]) }, /3 cannot run/],
    ["runs more than there is", { scheduled: run([1, 2]) }, /1 cannot run 2/],
    ["runs no token", { scheduled: run([1, 0]) }, /1 cannot run 0/],
    ["runs one twice", { scheduled: run([1, 1], [1, 1]) }, /two fates/],
    ["runs whom it evicts", { evict: { id: [1n], mode: [1] }, scheduled: run([1, 1]) }, /two fates/],
    ["admits and rejects one", { admit: { id: [3n] }, reject: { id: [3n], reason: [50] } }, /two fates/],
    ["admits who runs", { admit: { id: [1n] } }, /1 is not WAITING/],
    ["resumes who waits", { resume: { id: [3n] } }, /3 is not SWAPPED/],
    ["evicts who waits", { evict: { id: [3n], mode: [2] } }, /3 is not RUNNING/],
    ["evicts to nowhere", { evict: { id: [1n], mode: [0] } }, /nowhere/],
    ["has uneven columns", { scheduled: { id: [1n], numTokens: [1, 1] } }, /unequal/],
    ["has uneven evictions", { evict: { id: [1n], mode: [] } }, /unequal/],
    ["is over the token budget", { admit: { id: [3n] }, scheduled: run([2, 24], [3, 20]) }, /44 tokens, at most 32/],
    ["is over the places", { admit: { id: [3n] }, resume: { id: [4n] }, scheduled: run([1, 1]) }, /4 requests/],
    ["swaps out more than there is room", { evict: { id: [1n], mode: [EvictMode.SWAP] } }, /2 blocks, 1 are free/],
  ];
  for (const [name, plan, fault] of bad) {
    it(`that ${name} is refused`, () => assert.match(faultOf(plan) ?? "", fault));
  }

  it("that lacks blocks is refused, unless it evicts for them", () => {
    const state = stateWith({ numFreeBlocks: 0 });
    assert.match(faultOf({ scheduled: run([1, 1]) }, state) ?? "", /lacks 1 blocks/);
    assert.equal(faultOf({ evict: { id: [2n], mode: [2] }, scheduled: run([1, 1]) }, state), undefined);
  });

  it("that is not there is refused", () => assert.match(planFault(STATE, undefined) ?? "", /no plan/));

  it("counts who is loading among the places", () => {
    const requests = requestTable({
      id: [1, 2],
      status: [LOADING, WAITING],
      numPromptTokens: [16, 16],
      numBlocks: [1, 0],
    });
    const limits = { ...LIMITS, maxNumSeqs: 1 };
    const state = stateWith({ requests, limits });
    assert.match(faultOf({ admit: { id: [2n] }, scheduled: run([2, 16]) }, state) ?? "", /2 requests/);
  });
});

describe("a safe plan", () => {
  it("runs who runs, within tokens and blocks, and lets nobody in", () => {
    const plan = safePlan(STATE);
    assert.deepEqual(plan.scheduled?.id, [1n, 2n]);
    assert.deepEqual(plan.scheduled?.numTokens, [1, 24]);
    assert.equal(planFault(STATE, plan), undefined);
    const full = stateWith({ numFreeBlocks: 1 });
    assert.deepEqual(safePlan(full).scheduled?.id, [1n]);
    const narrow = stateWith({ limits: { ...LIMITS, maxNumBatchedTokens: 3 } });
    assert.deepEqual(safePlan(narrow).scheduled?.numTokens, [1, 2]);
  });

  it("has no block, token or place too many by a real scheduler's verifier", async () => {
    using scheduler = new SchedulerClient(SCHEDULER);
    const violations = await scheduler.verify({
      state: { nowUs: 1_000n, executors: [STATE] },
      plans: [safePlan(STATE)],
    });
    const { BATCH_LIMITS, BLOCKS, TOKENS, ONE_FATE } = Invariant;
    const memory = violations.filter(({ invariant }) => [BATCH_LIMITS, BLOCKS, TOKENS, ONE_FATE].includes(invariant));
    assert.deepEqual(memory, []);
  });
});
