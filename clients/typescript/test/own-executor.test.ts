/** The executor of `clients/examples/typescript`, under a real scheduler, with more work than it has memory for. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import * as client from "../src/index.js";
import { type GenerateOptions, InferenceClient } from "../src/index.js";
import { collect, HANG_MS, isIdle, SCHEDULER, until } from "./services.js";

describe("an executor in TypeScript", { timeout: HANG_MS }, () => {
  let process_: ChildProcess;
  let executor: InferenceClient;

  before(async () => {
    const program = fileURLToPath(new URL("../../examples/typescript/executor.mjs", import.meta.url));
    process_ = spawn(process.execPath, [program, "--scheduler", SCHEDULER, "--port", "0"], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    assert.ok(process_.stdout);
    const [told] = (await once(process_.stdout, "data")) as [Buffer];
    executor = new InferenceClient(told.toString().trim().split(" ").at(-1) ?? "", { retry: { maxAttempts: 1 } });
  });
  after(() => {
    executor.close();
    process_.kill();
  });

  async function textOf(prompt: string, options: GenerateOptions): Promise<string> {
    const events = await collect(executor.generate(prompt, options));
    assert.equal(events.at(-1)?.kind, "finished");
    return events.map((event) => (event.kind === "delta" ? event.text : "")).join("");
  }

  it("gives each the text that it would have alone, whoever else is there, and forgets it", async () => {
    const prompts = Array.from({ length: 10 }, (_, i) => `prompt ${i} `.repeat(1 + (i % 7)));
    const options = { maxTokens: 48, seed: 3 };
    const alone: string[] = [];
    for (const prompt of prompts) {
      alone.push(await textOf(prompt, options));
    }
    assert.deepEqual(await Promise.all(prompts.map((prompt) => textOf(prompt, options))), alone);
    await until(() => isIdle(executor));
    const { counters } = await executor.state();
    assert.deepEqual([counters?.numFinished, counters?.numRefusedPlans, counters?.numPlanFailures], [20n, 0n, 0n]);
    assert.ok((counters?.numEvictedSwap ?? 0n) + (counters?.numEvictedRecompute ?? 0n) > 0n); // else there was no want
  });

  it("stops where it is told, and sends no part of a stop string", async () => {
    const whole = await textOf("hello", { maxTokens: 30, temperature: 0 });
    const stop = whole.slice(10, 14);
    assert.equal(
      await textOf("hello", { maxTokens: 30, temperature: 0, stop: [stop] }),
      whole.slice(0, whole.indexOf(stop)),
    );
  });

  it("refuses what it does not offer", async () => {
    for (const options of [{ regex: "a" }, { logprobs: 1 }, { n: 2 }, { echo: true }, { repetitionPenalty: 2 }]) {
      await assert.rejects(textOf("hello", options), client.NotOfferedError);
    }
    await assert.rejects(textOf("hello", { maxTokens: 1_000 }), client.ExceedsModelLenError);
    await assert.rejects(collect(executor.watchState()), client.NotOfferedError);
  });
});
