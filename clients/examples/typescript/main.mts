/**
 * An executor of your own: it keeps books, asks a scheduler for plans, obeys them, and streams answers.
 *
 *     main.mts      the services, over which it is spoken to
 *     executor.mts  the books and the plans: read this first
 *     request.mts   one request and its stream
 *     checks.mts    what is refused
 *     model.mts     arithmetic in place of a model
 *
 *     node main.mjs --scheduler 127.0.0.1:50051 --port 50052
 */

import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import * as grpc from "@grpc/grpc-js";
import { MAX_MESSAGE_BYTES, SchedulerClient } from "@metronome-llm/client";
import { ExecutorService } from "@metronome-llm/client/executor/v1";
import { InferenceService } from "@metronome-llm/client/inference/v1";
import { implement, Refusal } from "@metronome-llm/client/serving";
import { HealthImplementation } from "grpc-health-check";
import { knownTokens } from "./checks.mjs";
import { Executor } from "./executor.mjs";
import { LIMITS, textOf, tokensOf, VOCAB_SIZE } from "./model.mjs";

const DOMAIN = "executor.metronome";

const { values: flags } = parseArgs({
  options: { scheduler: { type: "string", default: "127.0.0.1:50051" }, port: { type: "string", default: "50052" } },
});
const executor = new Executor(
  `arithmetic-${process.pid}`,
  new SchedulerClient(flags.scheduler, { retry: { maxAttempts: 1 } }),
);
const server = new grpc.Server({ "grpc.max_receive_message_length": MAX_MESSAGE_BYTES });
const health = new HealthImplementation();
health.addToServer(server);

implement(server, InferenceService, DOMAIN, {
  async *generate(message, { signal, deadlineMs }) {
    const request = executor.accept(message, deadlineMs);
    signal.addEventListener("abort", () => {
      executor.counters[Date.now() >= deadlineMs - 50 ? "numExpired" : "numCancelled"] += request.outcome ? 0n : 1n;
      request.end(new Refusal("CANCELLED", "CANCELLED", "the client has left"));
    });
    yield* request.events();
  },
  async cancel({ requestId }) {
    const request = executor.named(requestId);
    if (request === undefined) {
      throw new Refusal("NOT_FOUND", "UNKNOWN_REQUEST_ID", `no request ${requestId} is here`, { field: "request_id" });
    }
    executor.counters.numCancelled++;
    request.end(new Refusal("CANCELLED", "CANCELLED", "it was cancelled by its id"));
    return {};
  },
  async tokenize({ input }) {
    return { tokenIds: input.case === "text" ? tokensOf(input.value) : [] };
  },
  async detokenize({ tokenIds }) {
    return { text: textOf(knownTokens(tokenIds, "token_ids")) };
  },
  async getModelInfo() {
    return { model: "arithmetic", vocabSize: VOCAB_SIZE, maxModelLen: LIMITS.maxModelLen };
  },
});
implement(server, ExecutorService, DOMAIN, {
  async getState() {
    const requestNames = [...executor.requests.values()].map(({ id, name }) => ({ id, requestId: name }));
    const { counters, planningFailure } = executor;
    return {
      state: { nowUs: BigInt(Date.now()) * 1000n, executors: [executor.state()] },
      requestNames,
      counters,
      planningFailure,
    };
  },
  async drain(_, { signal }) {
    executor.draining = true;
    setServing("NOT_SERVING");
    while (executor.requests.size > 0 && !signal.aborted) {
      await sleep(20);
    }
    return {};
  },
});

function setServing(status: "SERVING" | "NOT_SERVING"): void {
  for (const name of ["", InferenceService.typeName, ExecutorService.typeName]) {
    health.setStatus(name, status);
  }
}

server.bindAsync(`127.0.0.1:${flags.port}`, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error !== null) {
    throw error;
  }
  setServing("SERVING");
  console.log(`listening on 127.0.0.1:${port}`);
  void executor.run();
});
