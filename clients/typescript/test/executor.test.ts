/** Against a real executor with a tiny model: 16 blocks of 16 tokens, eight requests at once. */

import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import * as client from "../src/index.js";
import { type Delta, type Event, type GenerateOptions, InferenceClient, type Prompt } from "../src/index.js";
import { collect, EXECUTOR, isIdle, until } from "./services.js";

const executor = new InferenceClient(EXECUTOR);
after(() => executor.close());

const GREEDY = { temperature: 0, ignoreEos: true };

function tokensOf(events: readonly Event[], index = 0): number[] {
  return deltasOf(events).flatMap((delta) => (delta.index === index ? delta.tokenIds : []));
}

function deltasOf(events: readonly Event[]): Delta[] {
  return events.filter((event) => event.kind === "delta");
}

async function answer(prompt: Prompt, options: GenerateOptions): Promise<Event[]> {
  return collect(executor.generate(prompt, options));
}

describe("generate", () => {
  it("streams an answer from its start to its end", async () => {
    const events = await answer("hello", { ...GREEDY, maxTokens: 8, requestId: "ts-1" });
    const [started] = events;
    const finished = events.at(-1);
    assert.ok(started?.kind === "started" && finished?.kind === "finished");
    assert.deepEqual([started.requestId, started.numPromptTokens, started.maxTokens], ["ts-1", 5, 8]);
    assert.equal(typeof started.seed, "bigint");
    assert.equal(tokensOf(events).length, 8);
    assert.deepEqual([finished.reason, finished.matchedStop, finished.index], ["length", "", 0]);
    assert.deepEqual([finished.usage.numPromptTokens, finished.usage.numOutputTokens], [5, 8]);
    assert.ok(finished.usage.totalTimeUs >= finished.usage.timeToFirstTokenUs);
    const text = deltasOf(events).map((delta) => delta.text);
    assert.equal(text.join(""), await executor.detokenize(tokensOf(events)));
  });

  it("gives the same tokens to text and to its tokens, and to the seed that it told", async () => {
    const byText = await answer("hello", { ...GREEDY, maxTokens: 6 });
    const byTokens = await answer(await executor.tokenize("hello"), { ...GREEDY, maxTokens: 6 });
    assert.deepEqual(tokensOf(byText), tokensOf(byTokens));
    const drawn = await answer("hello", { maxTokens: 12, ignoreEos: true });
    assert.ok(drawn[0]?.kind === "started");
    const again = await answer("hello", { maxTokens: 12, ignoreEos: true, seed: drawn[0].seed });
    assert.deepEqual(tokensOf(again), tokensOf(drawn));
  });

  it("gives several answers, each with its end", async () => {
    const events = await answer("hello", { n: 3, maxTokens: 4, ignoreEos: true, seed: 7 });
    const ends = events.filter((event) => event.kind === "finished").map((event) => event.index);
    assert.deepEqual(ends.sort(), [0, 1, 2]);
    for (const index of [0, 1, 2]) {
      assert.equal(tokensOf(events, index).length, 4);
    }
  });

  it("gives log-probabilities of the answer and of the prompt", async () => {
    const deltas = deltasOf(await answer("hello", { ...GREEDY, maxTokens: 2, logprobs: 2, promptLogprobs: 0 }));
    const [first] = deltas;
    assert.equal(first?.promptLogprobs.length, 5);
    assert.equal(first?.promptLogprobs[0], null);
    assert.ok((first?.promptLogprobs[1]?.logprob ?? 1) <= 0);
    for (const told of deltas.flatMap((delta) => delta.logprobs)) {
      assert.equal(told.topTokenIds.length, 2);
      assert.equal(told.topLogprobs[0], told.logprob);
    }
  });

  it("keeps to a form, and stops where it is told", async () => {
    const formed = await answer("hello", { regex: "[ab]{3}c", maxTokens: 20, seed: 1 });
    const text = deltasOf(formed).map((delta) => delta.text);
    assert.match(text.join(""), /^[ab]{3}c$/);
    const stopped = await answer("hello", { regex: "[ab]{3}c", stop: ["c"], maxTokens: 20, seed: 1 });
    const finished = stopped.at(-1);
    assert.ok(finished?.kind === "finished");
    assert.deepEqual([finished.reason, finished.matchedStop], ["stop", "c"]);
  });

  it("has room for many at once", async () => {
    const answers = await Promise.all(
      Array.from({ length: 24 }, (_, i) => answer(`request ${i}`, { ...GREEDY, maxTokens: 5 })),
    );
    assert.deepEqual(
      answers.map((events) => tokensOf(events).length),
      Array(24).fill(5),
    );
  });
});

describe("leaving an answer", () => {
  it("frees its memory, by breaking out of the loop", async () => {
    for await (const event of executor.generate("hello", { ...GREEDY, maxTokens: 200 })) {
      if (event.kind === "delta") {
        break;
      }
    }
    await until(() => isIdle(executor));
  });

  it("frees its memory, by the signal, whose reason the loop throws", async () => {
    const abort = new AbortController();
    const reason = new Error("the user went away");
    const reading = (async () => {
      for await (const event of executor.generate("hello", { ...GREEDY, maxTokens: 200, signal: abort.signal })) {
        if (event.kind === "delta") {
          abort.abort(reason);
        }
      }
    })();
    await assert.rejects(reading, reason);
    await until(() => isIdle(executor));
  });

  it("sends nothing at all where the signal was aborted before", async () => {
    const signal = AbortSignal.abort();
    await assert.rejects(collect(executor.generate("hello", { signal })), { name: "AbortError" });
    await assert.rejects(executor.modelInfo({ signal }), { name: "AbortError" });
  });

  it("is what closing the client does to all its calls", async () => {
    const other = new InferenceClient(EXECUTOR);
    const events = other.generate("hello", { ...GREEDY, maxTokens: 200 });
    assert.equal((await events.next()).value?.kind, "started");
    other.close();
    await assert.rejects(collect(events), client.CancelledError);
    await assert.rejects(other.modelInfo(), client.CancelledError);
    await until(() => isIdle(executor));
  });

  it("is what another client can do by the request's id", async () => {
    const events = executor.generate("hello", { ...GREEDY, maxTokens: 200, requestId: "ts-cancelled" });
    await events.next();
    using other = new InferenceClient(EXECUTOR);
    await other.cancel("ts-cancelled");
    await assert.rejects(collect(events), client.CancelledError);
    await until(() => isIdle(executor));
    await assert.rejects(other.cancel("ts-cancelled"), client.UnknownRequestIdError);
  });
});

describe("a refused request", () => {
  const rows: [string, Prompt, GenerateOptions, unknown, string][] = [
    ["an empty prompt", "", {}, client.EmptyPromptError, "text"],
    ["no tokens", [], {}, client.EmptyPromptError, "token_ids"],
    ["a token that is none", [1, -7], {}, client.UnknownTokenError, "token_ids.ids[1]"],
    ["a temperature below zero", "a", { temperature: -1 }, client.OutOfRangeError, "sampling.temperature"],
    [
      "a temperature that is no number",
      "a",
      { temperature: Number.NaN },
      client.OutOfRangeError,
      "sampling.temperature",
    ],
    ["a broken form", "a", { regex: "(" }, client.InvalidConstraintError, "sampling.regex"],
  ];
  for (const [name, prompt, options, expected, field] of rows) {
    it(`says what is wrong with ${name}`, async () => {
      await assert.rejects(answer(prompt, options), (error) => {
        assert.ok(error instanceof client.InvalidArgumentError);
        assert.equal(error.constructor, expected, error.stack);
        assert.equal(error.domain, "executor.metronome");
        assert.deepEqual(error.fieldViolations[0]?.field, field);
        return true;
      });
    });
  }

  it("has the figures", async () => {
    await assert.rejects(answer("a", { maxTokens: 100_000 }), client.ExceedsModelLenError);
    await assert.rejects(answer("a", { maxTokens: 450 }), (error) => {
      assert.ok(error instanceof client.ExceedsKvCacheError);
      assert.equal(error.metadata.num_blocks, "16");
      return true;
    });
  });

  it("is a conversation, where the model has no template for it", async () => {
    await assert.rejects(answer([{ role: "user", content: "a" }], {}), client.NoChatTemplateError);
    await assert.rejects(executor.tokenize([{ role: "user", content: "a" }]), client.NoChatTemplateError);
  });

  it("is one with the id of another that is under way", async () => {
    const events = executor.generate("hello", { ...GREEDY, maxTokens: 200, requestId: "ts-twice" });
    await events.next();
    await assert.rejects(answer("hello", { requestId: "ts-twice" }), client.DuplicateRequestIdError);
    await events.return();
  });

  it("never leaves where its message has no room for a value", async () => {
    for (const options of [{ maxTokens: 1.5 }, { topK: 2 ** 40 }, { seed: 2n ** 64n }, { logitBias: { 1: 1e300 } }]) {
      await assert.rejects(answer("a", options), RangeError);
    }
    assert.throws(() => executor.generate("a", { seed: 0.5 }), RangeError);
    await assert.rejects(collect(executor.generate("a", { timeoutMs: Number.NaN })), RangeError);
  });

  it("touches nobody else", async () => {
    await until(() => isIdle(executor));
    assert.equal(tokensOf(await answer("hello", { ...GREEDY, maxTokens: 3 })).length, 3);
  });
});

describe("an executor", () => {
  it("describes its model", async () => {
    const info = await executor.modelInfo();
    assert.deepEqual([info.vocabSize, info.dtype, info.hasChatTemplate], [300, "float32", false]);
  });

  it("turns text into tokens and back", async () => {
    const text = "Grüße, 世界 🎵";
    assert.equal(await executor.detokenize(await executor.tokenize(text)), text);
  });

  it("shows its books as they change", async () => {
    const watched = executor.watchState();
    const first = await watched.next();
    assert.equal(first.value?.state?.state?.executors[0]?.limits?.numBlocks, 16);
    const before = first.value?.state?.counters?.numFinished ?? 0n;
    await answer("hello", { ...GREEDY, maxTokens: 2 });
    for await (const { state, passes } of watched) {
      assert.ok(passes.every((pass) => pass.totalUs > 0n));
      if ((state?.counters?.numFinished ?? 0n) > before) {
        break;
      }
    }
    await assert.rejects(collect(executor.watchState({ minIntervalMs: -1 })), client.OutOfRangeError);
    await assert.rejects(collect(executor.watchState({ timeoutMs: 50 })), client.DeadlineExceededError);
  });

  it("is asked for by its address where there are several", async () => {
    using several = new InferenceClient([EXECUTOR, "127.0.0.1:1"]);
    assert.equal((await several.state({ address: EXECUTOR })).state?.executors.length, 1);
    await assert.rejects(several.state(), TypeError);
    await assert.rejects(several.drain(), TypeError);
    await assert.rejects(collect(several.watchState({ address: "127.0.0.1:2" })), TypeError);
  });
});
