/**
 * A complete executor: it keeps books, asks a scheduler for a plan before every pass, and obeys. Its model adds up.
 *
 *     node executor.mjs --port 50052 --scheduler 127.0.0.1:50051
 *
 * Yours goes where this one is: `tokensOf`, `textOf`, `nextToken`, and the pass in `run`. docs/bring-your-own.md walks through the
 * same in Python.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import * as grpc from "@grpc/grpc-js";
import { MAX_MESSAGE_BYTES, MetronomeError, SchedulerClient } from "@metronome-llm/client";
import { Books, checked, knownTokens, planFault, Request, safePlan } from "@metronome-llm/client/executing";
import { ExecutorService } from "@metronome-llm/client/executor/v1";
import { InferenceService } from "@metronome-llm/client/inference/v1";
import type { ExecutorPlan } from "@metronome-llm/client/scheduler/v1";
import { implement } from "@metronome-llm/client/serving";
import { HealthImplementation } from "grpc-health-check";

const DOMAIN = "executor.metronome";
const VOCAB_SIZE = 256;
const LIMITS = {
  maxNumBatchedTokens: 64,
  maxNumSeqs: 8,
  blockSize: 16,
  numBlocks: 32,
  numSwapBlocks: 8,
  maxModelLen: 480,
  maxNumWaiting: 16,
};

/** Tokens are bytes. */
function tokensOf(text: string): number[] {
  return [...Buffer.from(text)];
}

/** And text is bytes. */
function textOf(tokens: readonly number[]): string {
  return Buffer.from(tokens).toString();
}

/**
 * Arithmetic: a letter that all tokens so far decide, and the seed where there is chance.
 *
 * It follows from the request alone, or an eviction would change the text.
 */
function nextToken({ tokens, wanted }: Request): number {
  const seed = wanted.isGreedy ? 0 : Number(BigInt.asUintN(32, wanted.seed));
  return 97 + (tokens.reduce((hash, token) => (hash * 31 + token) % 1_000_003, seed) % 26);
}

const { values: flags } = parseArgs({
  options: { port: { type: "string", default: "50052" }, scheduler: { type: "string", default: "127.0.0.1:50051" } },
});
const scheduler = new SchedulerClient(flags.scheduler, { retry: { maxAttempts: 1 }, timeoutMs: 1_000 });
const books = new Books(`arithmetic-${process.pid}`, LIMITS);

/** Pass after pass, while somebody is there. */
async function run(): Promise<never> {
  for (;;) {
    await books.somebody();
    const work = books.begin(await nextPlan());
    // Yours copies work.swapOut and work.swapIn, and runs all of work.chunks in one forward pass.
    await sleep(work.chunks.length > 0 ? 1 : 10);
    books.commit(work);
    for (const [request] of work.chunks) {
      if (request.isComputed) {
        const token = nextToken(request);
        request.append(token, textOf([token]));
      }
    }
  }
}

/** The scheduler's plan for the next pass; the safe plan where none comes, or none that can be carried out. */
async function nextPlan(): Promise<ExecutorPlan> {
  const state = books.state();
  try {
    const { plans } = await scheduler.plan({ state: books.cluster(state) });
    books.planningFailure = "";
    if (plans[0] !== undefined && planFault(state, plans[0]) === undefined) {
      return plans[0];
    }
    books.counters.numRefusedPlans++;
  } catch (error) {
    if (!(error instanceof MetronomeError)) {
      throw error;
    }
    books.planningFailure = error.message;
    books.counters.numPlanFailures++;
  }
  books.counters.numSafePlans++;
  return safePlan(state);
}

const server = new grpc.Server({
  "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
  // A client that vanished without a word is noticed in 40 s.
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
});
const health = new HealthImplementation();
health.addToServer(server);

/** Tells health, for the server and for each service. */
function say(status: "SERVING" | "NOT_SERVING"): void {
  for (const name of ["", InferenceService.typeName, ExecutorService.typeName]) {
    health.setStatus(name, status);
  }
}

implement(server, InferenceService, DOMAIN, {
  /** Queues a request and streams what becomes of it; a client that leaves, or whose deadline passes, ends it. */
  async *generate(message, { signal, deadlineMs }) {
    const wanted = checked(message, { limits: LIMITS, tokenize: tokensOf, vocabSize: VOCAB_SIZE });
    const request = new Request(wanted, { deadlineMs });
    books.add(request);
    signal.addEventListener("abort", () => books.leave(request, deadlineMs));
    yield* request.events();
  },
  async cancel({ requestId }) {
    books.cancel(requestId);
    return {};
  },
  async tokenize({ input }) {
    return { tokenIds: input.case === "text" ? tokensOf(input.value) : [] };
  },
  async detokenize({ tokenIds }) {
    return { text: textOf(knownTokens(tokenIds, VOCAB_SIZE, "token_ids")) };
  },
  async getModelInfo() {
    return { model: "arithmetic", vocabSize: VOCAB_SIZE, maxModelLen: LIMITS.maxModelLen };
  },
});
implement(server, ExecutorService, DOMAIN, {
  async getState() {
    return books.response();
  },
  async drain(_, { signal }) {
    say("NOT_SERVING");
    await books.drained(signal);
    return {};
  },
});

server.bindAsync(`127.0.0.1:${flags.port}`, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error !== null) {
    throw error;
  }
  say("SERVING");
  console.log(`listening on 127.0.0.1:${port}`);
  void run();
});
