/** Several addresses: whose turn it is, who is passed over, and what is tried again. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";
import * as grpc from "@grpc/grpc-js";
import * as client from "../src/index.js";
import { InferenceClient, SchedulerClient } from "../src/index.js";
import { refusal, type ScriptedServer, serve } from "./scripted.js";
import { collect, EXECUTOR, HANG_MS, NOBODY, SCHEDULER, until } from "./services.js";

type Answer = grpc.handleUnaryCall<unknown, unknown>;
type Stream = grpc.handleServerStreamingCall<unknown, unknown>;

function text(of: string): Answer {
  return (_, answer) => answer(null, { $typeName: "metronome.inference.v1.DetokenizeResponse", text: of });
}

function refusing(code: grpc.status, reason: string): Answer & Stream {
  return ((call: grpc.ServerWritableStream<unknown, unknown>, answer?: grpc.sendUnaryData<unknown>) => {
    const error = refusal(code, reason);
    answer === undefined ? call.emit("error", error) : answer(error);
  }) as Answer & Stream;
}

async function between<T>(
  servers: readonly ScriptedServer[],
  use: (several: InferenceClient) => Promise<T>,
): Promise<T> {
  using several = new InferenceClient(servers.map(({ address }) => address));
  try {
    return await use(several);
  } finally {
    several.close();
    for (const server of servers) {
      server.stop();
    }
  }
}

describe("several addresses", { timeout: HANG_MS }, () => {
  it("are called in turn", async () => {
    const servers = [await serve({ detokenize: text("a") }), await serve({ detokenize: text("b") })];
    const answers = await between(servers, async (several) => {
      const all: string[] = [];
      for (let i = 0; i < 6; i++) {
        all.push(await several.detokenize([]));
      }
      return all;
    });
    assert.deepEqual(answers.sort(), ["a", "a", "a", "b", "b", "b"]);
  });

  it("are passed over while they say that they do not serve", async () => {
    const [a, b] = [await serve({ detokenize: text("a") }), await serve({ detokenize: text("b") })];
    await between([a, b], async (several) => {
      async function answersAre(expected: readonly string[]) {
        await until(async () => {
          const answers = new Set<string>();
          for (let i = 0; i < 8; i++) {
            answers.add(await several.detokenize([]));
          }
          return [...answers].sort().join() === expected.join();
        });
      }
      await answersAre(["a", "b"]);
      a.setServing(false);
      await answersAre(["b"]);
      a.setServing(true);
      await answersAre(["a", "b"]);
    });
  });

  it("are used where they have no health service", async () => {
    const servers = [
      await serve({ detokenize: text("a") }, { hasHealth: false }),
      await serve({ detokenize: text("b") }, { hasHealth: false }),
    ];
    await between(servers, async (several) => {
      const answers = new Set<string>();
      await until(async () => answers.add(await several.detokenize([])).size === 2);
    });
  });

  it("are all used again when they are back", async () => {
    const gone = await serve({ detokenize: text("a") });
    const other = await serve({ detokenize: text("b") });
    using several = new InferenceClient([gone.address, other.address]);
    await several.detokenize([]);
    gone.stop();
    for (let i = 0; i < 4; i++) {
      assert.equal(await several.detokenize([]), "b");
    }
    const back = await serve({ detokenize: text("a") }, { address: gone.address });
    await until(async () => (await several.detokenize([])) === "a");
    several.close();
    back.stop();
    other.stop();
  });

  it("may be absent, as long as one is not", async () => {
    using several = new InferenceClient([NOBODY, EXECUTOR, "no-such-host.invalid:1"]);
    for (let i = 0; i < 4; i++) {
      assert.equal((await several.modelInfo()).vocabSize, 300);
      const events = await collect(several.generate("hello", { maxTokens: 1 }));
      assert.equal(events.at(-1)?.kind, "finished");
    }
    using schedulers = new SchedulerClient([NOBODY, SCHEDULER]);
    assert.ok((await schedulers.listProfiles()).length > 0);
  });

  it("have no name in common that one must know to cancel", async () => {
    using several = new InferenceClient([NOBODY, EXECUTOR]);
    using other = new InferenceClient(EXECUTOR);
    const events = other.generate("hello", { maxTokens: 200, ignoreEos: true, requestId: "ts-somewhere" });
    await events.next();
    await several.cancel("ts-somewhere");
    await assert.rejects(collect(events), client.CancelledError);
    await assert.rejects(several.cancel("ts-somewhere"), client.UnavailableError); // the one not reached may have it
  });

  it("are at least one", () => {
    for (const addresses of [[], "", ["a:1", ""]]) {
      assert.throws(() => new InferenceClient(addresses), TypeError);
    }
  });
});

describe("a call that failed", { timeout: HANG_MS }, () => {
  const DRAINING = refusing(grpc.status.UNAVAILABLE, "DRAINING");

  it("is tried at once on another address, an answer that has not begun too", async () => {
    const draining = await serve({ detokenize: DRAINING, generate: DRAINING }, { hasHealth: false });
    const generate: Stream = (call) => {
      call.write({ $typeName: "metronome.inference.v1.GenerateResponse", sequence: 0n, event: { case: undefined } });
      call.end();
    };
    const other = await serve({ detokenize: text("b"), generate }, { hasHealth: false });
    await between([draining, other], async (several) => {
      for (let i = 0; i < 3; i++) {
        assert.equal(await several.detokenize([]), "b");
        assert.deepEqual(await collect(several.generate("hello")), []);
      }
    });
    assert.ok(draining.calls.includes("detokenize") && draining.calls.includes("generate"));
  });

  it("is given up when its caller has gone", async () => {
    const server = await serve({ detokenize: refusing(grpc.status.UNAVAILABLE, "MODEL_LOADING") });
    const retry = { maxAttempts: 3, initialBackoffMs: 3_600_000, maxBackoffMs: 3_600_000 };
    using executor = new InferenceClient(server.address, { retry });
    const abort = new AbortController();
    const reason = new Error("gone");
    const asked = executor.detokenize([], { signal: abort.signal, timeoutMs: Number.POSITIVE_INFINITY });
    await until(() => server.calls.length > 0);
    setTimeout(() => abort.abort(reason), 50);
    await assert.rejects(asked, reason);
    server.stop();
  });
});
