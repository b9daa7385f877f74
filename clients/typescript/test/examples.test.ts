/** Every example and every snippet of the READMEs, as programs of their own: they do what they say, and end by themselves. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { create } from "@bufbuild/protobuf";
import type * as grpc from "@grpc/grpc-js";
import { type GenerateRequest, GenerateResponseSchema } from "../src/contract/inference.js";
import { serve } from "./scripted.js";
import { CERTIFICATES, EXECUTOR, HANG_MS, SCHEDULER } from "./services.js";

const BUILD = new URL("../", import.meta.url);
const PACKAGE = new URL("../../", BUILD);

interface Ended {
  readonly code: number | null;
  readonly output: string;
}

/** Runs a program to its end. */
function run(file: URL, args: readonly string[] = [], input = ""): Promise<Ended> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [fileURLToPath(file), ...args], { cwd: CERTIFICATES, timeout: HANG_MS });
    const chunks: Buffer[] = [];
    child.stdout.on("data", (chunk: Buffer) => chunks.push(chunk));
    child.stderr.on("data", (chunk: Buffer) => chunks.push(chunk));
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, output: Buffer.concat(chunks).toString() }));
    child.stdin.end(input);
  });
}

describe("an example", () => {
  it("prints an answer as it comes", async () => {
    const { code, output } = await run(new URL("examples/generate.js", BUILD), ["hello", EXECUTOR]);
    assert.match(output, /\[(length|stop), \d+ tokens\]\n$/);
    assert.equal(code, 0);
  });

  it("stops an answer from outside", async () => {
    const { code, output } = await run(new URL("examples/abort.js", BUILD), [EXECUTOR]);
    assert.match(output, /\[left after \d+ tokens\]\n$/);
    assert.equal(code, 0);
  });

  it("says that the model has no chat template", async () => {
    const { code, output } = await run(new URL("examples/chat.js", BUILD), [EXECUTOR], "hello\n");
    assert.match(output, /no chat template/);
    assert.equal(code, 1);
  });

  it("holds a conversation", async () => {
    const generate: grpc.handleServerStreamingCall<GenerateRequest, unknown> = (call) => {
      const turns = call.request.prompt.case === "messages" ? call.request.prompt.value.messages : [];
      const told = turns.map(({ role, content }) => `${role}=${content}`).join(",");
      call.write(create(GenerateResponseSchema, { event: { case: "delta", value: { text: `<${told}>` } } }));
      call.end();
    };
    const server = await serve({ generate });
    const { code, output } = await run(new URL("examples/chat.js", BUILD), [server.address], "a\nb\n");
    server.stop();
    assert.match(output, /<user=a>[\s\S]*<user=a,assistant=<user=a>,user=b>/);
    assert.equal(code, 0);
  });
});

describe("the READMEs", () => {
  const files = [new URL("README.md", PACKAGE), new URL("../../README.md", PACKAGE)];
  const readme = files.map((file) => readFileSync(file, "utf-8")).join("\n");
  const snippets = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = ""]) => code);

  it("have snippets", () => assert.ok(snippets.length >= 5));

  snippets.forEach((snippet, i) => {
    it(`have a snippet ${i} that runs`, async () => {
      const program = new URL(`readme-${i}.mjs`, BUILD);
      writeFileSync(program, snippet.replaceAll("127.0.0.1:50052", EXECUTOR).replaceAll("127.0.0.1:50051", SCHEDULER));
      const { code, output } = await run(program);
      assert.equal(code, 0, output);
    });
  });
});
