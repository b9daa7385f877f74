import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { FinishReason, type GenerateRequest, GenerateRequestSchema } from "../src/contract/inference.js";
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
import { Books, checked, planFault, Request, safePlan, type Wanted } from "../src/executing/index.js";
import { requestTable, SchedulerClient } from "../src/index.js";
import { Refusal } from "../src/serving.js";
import { collect, SCHEDULER } from "./services.js";

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
    assert.deepEqual(plan.scheduled?.id, [1n, 2n, 4n]);
    assert.deepEqual(plan.scheduled?.numTokens, [1, 24, 1]);
    assert.deepEqual([plan.admit, plan.resume?.id], [undefined, [4n]]);
    assert.equal(planFault(STATE, plan), undefined);
    const full = stateWith({ numFreeBlocks: 1 });
    assert.deepEqual(safePlan(full).scheduled?.id, [1n]);
    const narrow = stateWith({ limits: { ...LIMITS, maxNumBatchedTokens: 3 } });
    assert.deepEqual(safePlan(narrow).scheduled?.numTokens, [1, 2]);
  });

  it("makes room where nobody could go on", () => {
    const requests = requestTable({
      id: [1, 2],
      status: [RUNNING, RUNNING],
      numPromptTokens: [63, 63],
      numOutputTokens: [2, 2],
      numComputedTokens: [64, 64],
      numBlocks: [4, 4],
    });
    const state = stateWith({ requests, numFreeBlocks: 0 });
    const plan = safePlan(state);
    assert.deepEqual([plan.evict?.id, plan.scheduled?.id], [[2n], [1n]]);
    assert.equal(planFault(state, plan), undefined);
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

const VOCAB = {
  limits: { ...LIMITS, maxModelLen: 256 },
  tokenize: (text: string) => [...Buffer.from(text)],
  vocabSize: 256,
};

function wanted(fields: MessageInitShape<typeof GenerateRequestSchema> = {}, offered: readonly string[] = []): Wanted {
  const message: GenerateRequest = create(GenerateRequestSchema, {
    prompt: { case: "text", value: "hello" },
    ...fields,
  });
  return checked(message, { ...VOCAB, offered });
}

describe("a request that is at fault", () => {
  const rows: [string, string, MessageInitShape<typeof GenerateRequestSchema>][] = [
    ["EMPTY_PROMPT", "text", { prompt: { case: "text", value: "" } }],
    ["EMPTY_PROMPT", "token_ids", { prompt: { case: "tokenIds", value: { ids: [] } } }],
    ["UNKNOWN_TOKEN", "token_ids.ids[1]", { prompt: { case: "tokenIds", value: { ids: [1, 256] } } }],
    ["NO_CHAT_TEMPLATE", "", { prompt: { case: "messages", value: {} } }],
    ["OUT_OF_RANGE", "sampling.temperature", { sampling: { temperature: Number.NaN } }],
    ["OUT_OF_RANGE", "sampling.top_p", { sampling: { topP: 0 } }],
    ["OUT_OF_RANGE", "sampling.presence_penalty", { sampling: { presencePenalty: -3 } }],
    ["OUT_OF_RANGE", "stopping.max_tokens", { stopping: { maxTokens: 0 } }],
    ["OUT_OF_RANGE", "stopping.stop", { stopping: { stop: Array(17).fill("x") } }],
    ["OUT_OF_RANGE", "stopping.stop[1]", { stopping: { stop: ["x", ""] } }],
    ["OUT_OF_RANGE", "tenant", { tenant: "ä".repeat(129) }],
    ["EXCEEDS_MODEL_LEN", "", { stopping: { maxTokens: 252 } }],
    ["EXCEEDS_KV_CACHE", "", { stopping: { maxTokens: 125 } }],
    ["NOT_OFFERED", "", { sampling: { n: 2 } }],
    ["NOT_OFFERED", "", { sampling: { logitBias: { 1: 2 } } }],
    ["NOT_OFFERED", "", { output: { logprobs: 0 } }],
  ];
  for (const [reason, field, fields] of rows) {
    it(`is ${reason} ${field}`, () => {
      assert.throws(
        () => wanted(fields),
        (error) => {
          assert.ok(error instanceof Refusal);
          assert.deepEqual([error.reason, error.details.field ?? ""], [reason, field]);
          return true;
        },
      );
    });
  }

  it("is none where the executor offers it, or where zero is meant", () => {
    assert.deepEqual(wanted({ sampling: { logitBias: { 1: 2 } } }, ["sampling.logit_bias"]).sampling.logitBias, {
      1: 2,
    });
    const { sampling, isGreedy } = wanted({ sampling: { temperature: 0, seed: 0n } });
    assert.deepEqual([sampling.temperature, sampling.seed, isGreedy], [0, 0n, true]);
    assert.deepEqual([wanted().sampling.temperature, wanted().isGreedy, wanted().maxTokens], [1, false, 124]);
  });
});

async function told(request: Request) {
  const events = await collect(request.events());
  assert.deepEqual(
    events.map(({ sequence }) => sequence),
    events.map((_, i) => BigInt(i)),
  );
  const { event: last } = events.at(-1) ?? {};
  assert.ok(last?.case === "finished");
  const texts = events.flatMap(({ event }) => (event.case === "delta" ? [event.value.text] : []));
  return { texts, stop: last.value.matchedStop, reason: last.value.finishReason, usage: last.value.usage };
}

describe("a stop string over several tokens (case 42)", () => {
  const rows: [readonly string[], readonly string[], string][] = [
    [["DEFGHIJ"], ["AB", "C", "", "", "", ""], "DEFGHIJ"],
    [["DEFGX"], ["AB", "C", "", "", "DEFGHI", "J"], ""],
    [["BCX", "J"], ["A", "", "BCDEF", "G", "HI", ""], "J"],
    [["CD", "CDE"], ["AB", "", ""], "CD"],
  ];
  for (const [stop, texts, matched] of rows) {
    it(`is not sent: ${stop}`, async () => {
      const request = new Request(wanted({ stopping: { stop: [...stop], maxTokens: 6 } }));
      for (const [token, text] of ["AB", "C", "DEF", "G", "HI", "J"].entries()) {
        request.append(token, text);
      }
      const answer = await told(request);
      assert.deepEqual([answer.texts, answer.stop, answer.usage?.numOutputTokens], [texts, matched, texts.length]);
      assert.equal(answer.reason, matched === "" ? FinishReason.LENGTH : FinishReason.STOP);
    });
  }

  it("is not looked for before the least tokens, and an end token is not sent", async () => {
    const stopping = { stop: ["a"], minTokens: 2, maxTokens: 9 };
    const request = new Request(wanted({ stopping }, ["stopping.min_tokens"]));
    for (const text of ["a", "b", "c"]) {
      request.append(1, text);
    }
    request.append(2, "</s>", { isEnd: true });
    request.append(3, "too late");
    const { texts, stop, reason } = await told(request);
    assert.deepEqual([texts, stop, reason], [["a", "b", "c", ""], "", FinishReason.STOP]);
  });
});

describe("books", () => {
  function planned(books: Books, plan: MessageInitShape<typeof ExecutorPlanSchema>) {
    const { executorId, iteration } = books.state();
    const whole = create(ExecutorPlanSchema, { executorId, iteration, ...plan });
    assert.equal(planFault(books.state(), whole), undefined);
    return books.begin(whole);
  }

  function booksWith(...requests: readonly Request[]): Books {
    const books = new Books("e", { ...LIMITS, maxNumWaiting: 2 });
    for (const request of requests) {
      books.add(request);
    }
    return books;
  }

  const prompt = { case: "text", value: "x".repeat(10) } as const;

  it("keep the output of who is evicted, and have its blocks again", () => {
    const [one, two, three] = [
      new Request(wanted({ prompt })),
      new Request(wanted({ prompt })),
      new Request(wanted({ prompt })),
    ];
    const books = booksWith(one, two);
    books.commit(planned(books, { admit: { id: [1n, 2n] }, scheduled: run([1, 10], [2, 10]) }));
    assert.ok(one.isComputed);
    one.append(1, "a");
    books.add(three);
    const evict = { id: [1n, 2n], mode: [EvictMode.SWAP, EvictMode.RECOMPUTE] };
    assert.deepEqual(planned(books, { evict }).swapOut, [one]);
    const state = books.state();
    assert.deepEqual([state.numFreeBlocks, state.numFreeSwapBlocks], [8, 1]);
    assert.deepEqual(state.requests?.numComputedTokens, [10, 0, 0]);
    assert.deepEqual(state.requests?.numOutputTokens, [1, 0, 0]);
    const scheduled = run([1, 1], [3, 10]);
    assert.deepEqual(planned(books, { resume: { id: [1n] }, admit: { id: [3n] }, scheduled }).swapIn, [one]);
    assert.deepEqual(books.state().requests?.timesOvertaken, [0, 1, 0]);
    assert.equal(books.state().iteration, 4n);
  });

  it("tell who is rejected when to come again", async () => {
    const request = new Request(wanted());
    const reject = { id: [1n], reason: [Reason.REJECTED_QUEUE_FULL], estimatedWaitUs: [2_500_000n] };
    planned(booksWith(request), { reject });
    await assert.rejects(told(request), (error) => {
      assert.ok(error instanceof Refusal);
      assert.deepEqual([error.reason, error.details.retryDelayMs], ["REJECTED_BY_SCHEDULER", 2_500]);
      return true;
    });
  });

  it("keep nothing of who may not enter", async () => {
    const books = booksWith(new Request(wanted({ requestId: "r" })));
    assert.throws(() => books.add(new Request(wanted({ requestId: "r" }))), { reason: "DUPLICATE_REQUEST_ID" });
    const last = new Request(wanted());
    books.add(last);
    assert.throws(() => books.add(new Request(wanted())), { reason: "QUEUE_FULL" });
    books.cancel("r");
    books.add(new Request(wanted({ requestId: "r" }))); // its name is free again
    assert.throws(() => books.cancel("other"), { reason: "UNKNOWN_REQUEST_ID" });
    books.cancel("r");
    const drained = books.drained();
    assert.throws(() => books.add(new Request(wanted())), { reason: "DRAINING" });
    books.leave(last, Date.now());
    await drained;
    assert.deepEqual(
      [books.counters.numAccepted, books.counters.numCancelled, books.counters.numExpired],
      [3n, 2n, 1n],
    );
  });
});
