/** Methods as plain functions, seen from the client. */

import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import * as grpc from "@grpc/grpc-js";
import { InferenceService } from "../src/contract/inference.js";
import { errorFromCall } from "../src/errors.js";
import * as client from "../src/index.js";
import { InferenceClient } from "../src/index.js";
import { implement, Refusal } from "../src/serving.js";
import { collect, HANG_MS, until } from "./services.js";

describe("a server of plain functions", { timeout: HANG_MS }, () => {
  const server = new grpc.Server();
  let executor: InferenceClient;
  let address: string;
  let hasLeft = false;

  before(async () => {
    implement(server, InferenceService, "executor.metronome", {
      async tokenize({ input }) {
        return { tokenIds: [...Buffer.from(input.value as string)] };
      },
      async detokenize({ tokenIds }) {
        if (tokenIds.length > 0) {
          throw new Refusal("RESOURCE_EXHAUSTED", "QUEUE_FULL", "come again", {
            field: "token_ids",
            metadata: { waiting: "4" },
            retryDelayMs: 1_500,
            subject: "tenant:a",
          });
        }
        throw new Error("a secret of this server");
      },
      async *generate({ prompt }, { signal, deadlineMs }) {
        yield {
          event: { case: "started", value: { maxTokens: Math.min(Math.round(deadlineMs - Date.now()), 60_000) } },
        };
        if (prompt.value === "hang") {
          await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
          hasLeft = true;
        } else if (prompt.value === "many") {
          for (let i = 0; i < 500; i++) {
            yield { event: { case: "delta", value: { text: "x".repeat(10_000) } } };
          }
        } else {
          throw new Refusal("INTERNAL", "INVALID_LOGITS", "no numbers");
        }
      },
    });
    const port = await new Promise<number>((resolve, reject) => {
      const credentials = grpc.ServerCredentials.createInsecure();
      server.bindAsync("127.0.0.1:0", credentials, (error, bound) => (error === null ? resolve(bound) : reject(error)));
    });
    address = `127.0.0.1:${port}`;
    executor = new InferenceClient(address, { retry: { maxAttempts: 1 } });
  });
  after(() => {
    executor.close();
    server.forceShutdown();
  });

  it("answers", async () => assert.deepEqual(await executor.tokenize("ab"), [97, 98]));

  it("refuses, with every detail", async () => {
    await assert.rejects(executor.detokenize([1]), (error) => {
      assert.ok(error instanceof client.QueueFullError);
      assert.deepEqual([error.message, error.domain, error.retryDelayMs], ["come again", "executor.metronome", 1_500]);
      assert.deepEqual(error.metadata, { waiting: "4", field: "token_ids" });
      assert.deepEqual(error.fieldViolations, [{ field: "token_ids", description: "come again" }]);
      assert.deepEqual(error.quotaViolations, [{ subject: "tenant:a", description: "come again" }]);
      return true;
    });
  });

  it("keeps its own faults to itself", async (context) => {
    const logged = context.mock.method(console, "error", () => undefined);
    await assert.rejects(executor.detokenize([]), (error) => {
      assert.ok(error instanceof client.InternalError);
      assert.doesNotMatch(error.message, /secret/);
      return true;
    });
    assert.equal(logged.mock.callCount(), 1);
  });

  it("refuses in the midst of a stream", async () => {
    await assert.rejects(collect(executor.generate("a")), client.InvalidLogitsError);
  });

  it("sends as fast as the client reads", async () => {
    const events = await collect(executor.generate("many"));
    assert.equal(events.length, 501);
  });

  it("knows that a client has left, and by when its answer is due", async () => {
    const events = executor.generate("hang", { timeoutMs: 30_000 });
    const started = await events.next();
    assert.ok(started.value?.kind === "started" && started.value.maxTokens <= 30_000);
    await events.return();
    await until(() => hasLeft);
  });

  it("does not offer what it has no function for", async () => {
    await assert.rejects(executor.modelInfo(), client.NotOfferedError);
  });

  for (const bytes of [
    [0xff, 0xff],
    [0x12, 0x02, 0xff, 0xfe],
  ]) {
    it(`refuses ${bytes}, which are no message`, async () => {
      const channel = new grpc.Client(address, grpc.credentials.createInsecure());
      const same = (part: Buffer) => part;
      const path = "/metronome.inference.v1.InferenceService/Generate";
      const call = channel.makeServerStreamRequest(path, same, same, Buffer.from(bytes));
      await assert.rejects(collect(call), (failed: grpc.ServiceError) => {
        assert.ok(errorFromCall(failed) instanceof client.MalformedMessageError);
        return true;
      });
      channel.close();
    });
  }
});
