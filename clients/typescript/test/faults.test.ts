/**
 * Faults that need more than a server that goes wrong by a script: those are scenarios of the conformance kit. Whatever goes wrong, a
 * call ends, with the error that says what it was.
 */

import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import * as grpc from "@grpc/grpc-js";
import * as client from "../src/index.js";
import { type Event, InferenceClient, SchedulerClient, type TlsOptions } from "../src/index.js";
import { proxy, tlsProxy } from "./proxy.js";
import { refusal, serve } from "./scripted.js";
import {
  collect,
  EXECUTOR,
  type ExecutorProcess,
  HANG_MS,
  isIdle,
  pem,
  startExecutor,
  TLS_SCHEDULER,
  until,
} from "./services.js";

const ONCE = { retry: { maxAttempts: 1 } };
const LONG = { temperature: 0, ignoreEos: true, maxTokens: 200 };

/** An answer that has begun. */
async function begun(executor: InferenceClient, options = {}): Promise<AsyncGenerator<Event, void, undefined>> {
  const events = executor.generate("hello", { ...LONG, ...options });
  assert.equal((await events.next()).value?.kind, "started");
  return events;
}

describe("a deadline that passes", { timeout: HANG_MS }, () => {
  it("may be zero, and a signal ends a call that nobody answers", async () => {
    const silent = await proxy(undefined);
    using executor = new InferenceClient(silent.address);
    await assert.rejects(executor.modelInfo({ timeoutMs: 0 }), client.DeadlineExceededError);
    await assert.rejects(executor.modelInfo({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    silent.stop();
  });

  it("ends an answer that is under way", async () => {
    using executor = new InferenceClient(EXECUTOR);
    const events = executor.generate("hello", { ...LONG, timeoutMs: 60 });
    await assert.rejects(collect(events), (error) => {
      assert.ok(error instanceof client.DeadlineExceededError);
      return true;
    });
    await until(() => isIdle(executor));
  });
});

describe("a message over the limit", { timeout: HANG_MS }, () => {
  it("is not sent", async () => {
    using executor = new InferenceClient(EXECUTOR, { maxMessageBytes: 1_000 });
    await assert.rejects(executor.tokenize("a".repeat(2_000)), client.MessageTooLargeError);
    await assert.rejects(collect(executor.generate("a".repeat(2_000))), client.MessageTooLargeError);
  });

  it("is not taken", async () => {
    using executor = new InferenceClient(EXECUTOR, { maxMessageBytes: 20 });
    await assert.rejects(executor.state(), client.MessageTooLargeError);
    await assert.rejects(collect(executor.watchState()), client.MessageTooLargeError);
  });
});

describe("a certificate", { timeout: HANG_MS }, () => {
  const rootCertificates = pem("ca.pem");
  const shown = { rootCertificates, certificate: pem("client.pem"), privateKey: pem("client.key") };

  async function numProfiles(tls: TlsOptions | boolean | undefined): Promise<number> {
    using scheduler = new SchedulerClient(TLS_SCHEDULER, { ...ONCE, tls });
    return (await scheduler.listProfiles({ timeoutMs: 5_000 })).length;
  }

  it("that is trusted is taken, and ours is shown", async () => assert.ok((await numProfiles(shown)) > 0));

  it("of ours is missed by a server that asks for one", async () => {
    await assert.rejects(numProfiles({ rootCertificates }), client.UnavailableError);
  });

  it("of nobody known is refused, and the error says so", async () => {
    await assert.rejects(numProfiles(true), (error) => {
      assert.ok(error instanceof client.UnavailableError);
      assert.match(error.message, /certificate/);
      return true;
    });
  });

  it("of another name is taken, where that is the name asked for", async () => {
    const foreign = { cert: pem("elsewhere.pem"), key: pem("elsewhere.key") };
    const line = await tlsProxy(EXECUTOR, foreign);
    const tls = { rootCertificates, serverName: "elsewhere.test" };
    using trusting = new InferenceClient(`localhost:${line.port}`, { ...ONCE, tls });
    const events = await collect(trusting.generate("hello", { ...LONG, maxTokens: 3 }));
    assert.equal(events.at(-1)?.kind, "finished");
    line.stop();
  });
});

describe("a token", { timeout: HANG_MS }, () => {
  it("says to a real scheduler who calls", async () => {
    const tls = { rootCertificates: pem("ca.pem"), certificate: pem("client.pem"), privateKey: pem("client.key") };
    using known = new SchedulerClient(TLS_SCHEDULER, { ...ONCE, tls, token: "right" });
    assert.ok((await known.listProfiles()).length > 0);
    using stranger = new SchedulerClient(TLS_SCHEDULER, { ...ONCE, tls, token: "wrong" });
    await assert.rejects(stranger.listProfiles(), client.UnknownCallerError);
    await assert.rejects(collect(stranger.planStream([{}])), client.UnknownCallerError);
  });

  const tls = { rootCertificates: pem("ca.pem") };
  const credentials = grpc.ServerCredentials.createSsl(null, [
    { cert_chain: pem("localhost.pem"), private_key: pem("localhost.key") },
  ]);
  const detokenize: grpc.handleUnaryCall<unknown, unknown> = (call, answer) => {
    const isKnown = call.metadata.get("authorization")[0] === "Bearer right";
    answer(isKnown ? null : refusal(grpc.status.UNAUTHENTICATED), {
      $typeName: "metronome.inference.v1.DetokenizeResponse",
      text: "yes",
    });
  };

  it("may be given for each call, and one that cannot be had ends the call", async () => {
    const server = await serve({ detokenize }, { credentials });
    const tokens = ["right", () => "right", async () => "right"];
    for (const token of tokens) {
      using executor = new InferenceClient(server.address, { tls, token });
      assert.equal(await executor.detokenize([]), "yes");
    }
    using executor = new InferenceClient(server.address, {
      tls,
      token: () => Promise.reject(new Error("no token today")),
    });
    await assert.rejects(executor.detokenize([]), { name: "UnauthenticatedError" });
    server.stop();
  });
});

describe("an executor with one place and one to wait in", { timeout: 2 * HANG_MS }, () => {
  let executor: ExecutorProcess;
  let once: InferenceClient;
  before(async () => {
    executor = await startExecutor("--max-num-seqs", "1", "--max-num-waiting", "1", "--num-blocks", "64");
    once = new InferenceClient(executor.address, ONCE);
  });
  after(async () => {
    once.close();
    await executor.kill();
  });

  /** Takes both places. */
  async function occupy() {
    await until(() => isIdle(once));
    const running = await begun(once, { maxTokens: 480 });
    await running.next(); // it runs, so that the next one waits
    return [running, await begun(once)] as const;
  }

  it("is come back to, when it says, by a client that tries again", async () => {
    const answers = await occupy();
    using patient = new InferenceClient(executor.address, { retry: { maxAttempts: 10 } });
    const answer = collect(patient.generate("hello", { ...LONG, maxTokens: 2 }));
    for (const events of answers) {
      await events.return();
    }
    assert.equal((await answer).at(-1)?.kind, "finished");
  });

  it("that is stopped dead is given up at the deadline", async () => {
    executor.process.kill("SIGSTOP");
    try {
      await assert.rejects(once.modelInfo({ timeoutMs: 300 }), client.DeadlineExceededError);
      await assert.rejects(collect(once.generate("hello", { timeoutMs: 300 })), client.DeadlineExceededError);
    } finally {
      executor.process.kill("SIGCONT");
    }
    await until(() => isIdle(once));
  });

  it("takes nothing new while it drains, and ends what it has; and when it is killed, those who watch it know", async () => {
    const watched = once.watchState();
    await watched.next();
    const events = await begun(once);
    const drained = once.drain();
    await until(async () => (await once.state()).state?.executors[0]?.draining === true);
    await assert.rejects(collect(once.generate("hello")), (error) => {
      assert.ok(error instanceof client.DrainingError);
      assert.ok(error instanceof client.UnavailableError);
      return true;
    });
    assert.equal((await collect(events)).at(-1)?.kind, "finished");
    await drained;
    const watching = assert.rejects(collect(watched), client.UnavailableError);
    await executor.kill();
    await watching;
    await assert.rejects(once.state(), client.UnavailableError);
  });
});
