/** Against a real scheduler. */

import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { create } from "@bufbuild/protobuf";
import * as contract from "../src/contract/scheduler.js";
import * as client from "../src/index.js";
import { type Columns, decision, requestTable, SchedulerClient } from "../src/index.js";
import { collect, HANG_MS, SCHEDULER, until } from "./services.js";

const scheduler = new SchedulerClient(SCHEDULER);
after(() => scheduler.close());

const { WAITING, RUNNING } = contract.RequestStatus;

const TABLE: Columns = {
  id: [1, 2, 3],
  status: [RUNNING, WAITING, WAITING],
  arrivalTimeUs: [1_000, 2_000, 3_000],
  numPromptTokens: [16, 16, 200],
  numOutputTokens: [1, 0, 0],
  numComputedTokens: [16, 0, 0],
  numBlocks: [1, 0, 0],
};

function stateWith(columns: Columns) {
  const limits = { maxNumBatchedTokens: 64, maxNumSeqs: 4, blockSize: 16, numBlocks: 8, maxModelLen: 128 };
  return {
    nowUs: 1_000_000n,
    executors: [
      {
        executorId: "ts",
        iteration: 5n,
        limits,
        numFreeBlocks: 7,
        numFreeSwapBlocks: 0,
        requests: requestTable(columns),
      },
    ],
  };
}

describe("a scheduler", () => {
  it("plans a state, and says why", async () => {
    const { plans } = await scheduler.plan({ state: stateWith(TABLE), explain: true });
    const [plan] = plans;
    assert.deepEqual([plan?.executorId, plan?.iteration], ["ts", 5n]);
    assert.deepEqual(plan?.scheduled?.id, [1n, 2n]);
    assert.deepEqual(plan?.scheduled?.numTokens, [1, 16]);
    assert.deepEqual(plan?.admit?.id, [2n]);
    assert.deepEqual(plan?.reject?.reason, [contract.Reason.REJECTED_EXCEEDS_BLOCKS]);
    assert.deepEqual(plan?.explanations?.id, [1n, 2n, 3n]);
  });

  it("finds nothing wrong with its own plan, and what is wrong with another", async () => {
    const state = stateWith(TABLE);
    const { plans } = await scheduler.plan({ state });
    assert.deepEqual(await scheduler.verify({ state, plans }), []);
    const [plan] = plans;
    assert.ok(plan?.scheduled);
    plan.scheduled.numTokens[1] = 60;
    const [violation] = await scheduler.verify({ state, plans });
    assert.equal(violation?.executorId, "ts");
    assert.ok(violation.description.length > 0);
  });

  it("places requests onto executors", async () => {
    const requests = requestTable({ id: [7n], status: [WAITING], numPromptTokens: [16] });
    const { assignments } = await scheduler.place({ state: stateWith(TABLE), requests });
    assert.deepEqual(
      assignments.map(({ id, executorId }) => [id, executorId]),
      [[7n, "ts"]],
    );
  });

  it("lists its profiles", async () => {
    const profiles = await scheduler.listProfiles();
    assert.equal(profiles.filter((profile) => profile.isDefault).length, 1);
    const [first] = profiles;
    assert.ok(first);
    await scheduler.plan({ state: stateWith(TABLE), policyChoice: { case: "profile", value: first.name } });
  });

  const rows: [string, Parameters<SchedulerClient["plan"]>[0], unknown, string][] = [
    ["no state", {}, client.MissingFieldError, "state"],
    [
      "an unknown profile",
      { state: stateWith(TABLE), policyChoice: { case: "profile", value: "fast" } },
      client.UnknownProfileError,
      "profile",
    ],
    [
      "a short column",
      { state: stateWith({ ...TABLE, numBlocks: [1] }) },
      client.ColumnLengthError,
      "state.executors[0].requests.num_blocks",
    ],
    [
      "an id twice",
      { state: stateWith({ ...TABLE, id: [1, 2, 2] }) },
      client.DuplicateError,
      "state.executors[0].requests.id[2]",
    ],
    [
      "a policy out of range",
      { state: stateWith(TABLE), policyChoice: { case: "policy", value: { watermark: 2 } } },
      client.OutOfRangeError,
      "policy.watermark",
    ],
  ];
  for (const [name, request, expected, field] of rows) {
    it(`says what is wrong with ${name}`, async () => {
      await assert.rejects(scheduler.plan(request), (error) => {
        assert.ok(error instanceof client.InvalidArgumentError);
        assert.equal(error.constructor, expected, error.stack);
        assert.equal(error.domain, "scheduler.metronome");
        assert.equal(error.fieldViolations[0]?.field, field);
        return true;
      });
    });
  }
});

describe("a decision", () => {
  it("is a plan as plain values", async () => {
    const { plans } = await scheduler.plan({ state: stateWith(TABLE), explain: true });
    assert.ok(plans[0]);
    const { executorId, iteration, scheduled, admit, reject, evict, reasons } = decision(plans[0]);
    assert.deepEqual([executorId, iteration, admit, evict.size], ["ts", 5n, [2n], 0]);
    assert.deepEqual(
      [...scheduled],
      [
        [1n, 1],
        [2n, 16],
      ],
    );
    assert.deepEqual([...reject], [[3n, "REJECTED_EXCEEDS_BLOCKS"]]);
    assert.deepEqual([...reasons.keys()].sort(), [1n, 2n, 3n]);
    assert.equal(reasons.get(1n), "DECODE");
  });

  it("shows what it does not know as its number, and nothing where there is nothing", () => {
    const evict = {
      id: [1n, 2n],
      mode: [contract.EvictMode.SWAP, 9],
      reason: [contract.Reason.EVICTED_OUT_OF_BLOCKS, 99],
    };
    const read = decision(create(contract.ExecutorPlanSchema, { evict }));
    assert.deepEqual(
      [...read.evict],
      [
        [1n, "SWAP"],
        [2n, "9"],
      ],
    );
    assert.deepEqual(
      [...read.reasons],
      [
        [1n, "EVICTED_OUT_OF_BLOCKS"],
        [2n, "99"],
      ],
    );
    assert.deepEqual([read.scheduled.size, read.admit, read.resume], [0, [], []]);
  });
});

describe("a stream of plans", { timeout: HANG_MS }, () => {
  const request = { state: stateWith(TABLE) };

  it("answers each request as a call does, one after the other", async () => {
    const { plans } = await scheduler.plan(request);
    let answered: () => void = () => undefined;
    async function* passAfterPass() {
      for (let i = 0; i < 3; i++) {
        yield request;
        await new Promise<void>((resolve) => (answered = resolve)); // the next state follows from the plan
      }
    }
    let numAnswers = 0;
    for await (const answer of scheduler.planStream(passAfterPass())) {
      assert.deepEqual(answer.plans, plans);
      numAnswers++;
      answered();
    }
    assert.equal(numAnswers, 3);
    assert.equal((await collect(scheduler.planStream([request, request]))).length, 2);
  });

  it("ends with the first request that is refused", async () => {
    const answers: unknown[] = [];
    await assert.rejects(async () => {
      for await (const answer of scheduler.planStream([request, {}, request])) {
        answers.push(answer);
      }
    }, client.MissingFieldError);
    assert.equal(answers.length, 1);
  });

  it("ends with what its requests' source throws, or what they cannot hold", async () => {
    async function* broken() {
      yield request;
      throw new Error("no more states");
    }
    await assert.rejects(collect(scheduler.planStream(broken())), /no more states/);
    const half = { state: { nowUs: 1n, executors: [{ limits: { maxNumSeqs: 1.5 } }] } };
    await assert.rejects(collect(scheduler.planStream([half])), RangeError);
  });

  it("ends when its caller leaves or aborts, and ends its source", async () => {
    let hasEnded = false;
    async function* endless() {
      try {
        for (;;) {
          yield request;
        }
      } finally {
        hasEnded = true;
      }
    }
    for await (const _ of scheduler.planStream(endless())) {
      break;
    }
    await until(() => hasEnded);
    const abort = new AbortController();
    const answers = scheduler.planStream(endless(), { signal: abort.signal });
    await answers.next();
    abort.abort(new Error("enough"));
    await assert.rejects(collect(answers), /enough/);
    await assert.rejects(collect(scheduler.planStream(endless(), { timeoutMs: 200 })), client.DeadlineExceededError);
  });
});

describe("a table", () => {
  it("is written from numbers, bigints and typed arrays", () => {
    const table = requestTable({ id: [1, 2n], status: [WAITING, WAITING], numPromptTokens: Int32Array.of(3, 4) });
    assert.deepEqual(
      [table.id, table.numPromptTokens],
      [
        [1n, 2n],
        [3, 4],
      ],
    );
    assert.deepEqual(requestTable({ id: BigInt64Array.of(5n) }).id, [5n]);
    assert.deepEqual(requestTable({ status: ["RUNNING", WAITING] }).status, [RUNNING, WAITING]);
  });

  it("takes whole numbers, into columns that there are", () => {
    assert.throws(() => requestTable({ id: [1.5] }), RangeError);
    assert.throws(() => requestTable({ ids: [1] } as Columns), TypeError);
  });
});
