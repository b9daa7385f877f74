import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fromBinary, isFieldSet, toBinary } from "@bufbuild/protobuf";
import { GenerateRequestSchema, OutputOptionsSchema, SamplingParametersSchema } from "../src/contract/inference.js";
import { generateRequest, type Prompt, tokenizeRequest } from "../src/requests.js";

function sent(...[prompt, options]: Parameters<typeof generateRequest>) {
  return fromBinary(GenerateRequestSchema, toBinary(GenerateRequestSchema, generateRequest(prompt, options)));
}

describe("a request", () => {
  it("says zero where zero is asked for, and nothing where nothing is", () => {
    const sampling = SamplingParametersSchema.field;
    const zero = sent("a", { temperature: 0, seed: 0, logprobs: 0 });
    assert.ok(zero.sampling && zero.output);
    assert.ok(isFieldSet(zero.sampling, sampling.temperature) && isFieldSet(zero.sampling, sampling.seed));
    assert.ok(isFieldSet(zero.output, OutputOptionsSchema.field.logprobs));
    const open = sent("a", {});
    assert.ok(open.sampling && open.output && open.stopping);
    for (const field of [sampling.temperature, sampling.topP, sampling.seed, sampling.n, sampling.bestOf]) {
      assert.equal(isFieldSet(open.sampling, field), false, field.name);
    }
    assert.equal(open.stopping.maxTokens, undefined);
    assert.equal(open.output.logprobs, undefined);
  });

  const prompts: [string, Prompt, string | undefined][] = [
    ["text", "hello", "text"],
    ["an empty text", "", "text"],
    ["token ids", [1, 2], "tokenIds"],
    ["no token ids", [], "tokenIds"],
    ["a conversation", [{ role: "user", content: "hello" }], "messages"],
  ];
  for (const [name, prompt, expected] of prompts) {
    it(`carries ${name}`, () => assert.equal(sent(prompt, {}).prompt.case, expected));
  }

  it("carries every option", () => {
    const message = sent("a", {
      maxTokens: 1,
      temperature: 0.5,
      topK: 2,
      topP: 0.25,
      minP: 0.125,
      seed: 2n ** 62n,
      repetitionPenalty: 1.5,
      presencePenalty: -1,
      frequencyPenalty: 1,
      logitBias: { 3: -100 },
      allowedTokenIds: [3, 4],
      bannedTokenIds: [5],
      regex: "a+",
      n: 2,
      bestOf: 3,
      stop: ["x"],
      stopTokenIds: [6],
      ignoreEos: true,
      minTokens: 1,
      echo: true,
      logprobs: 4,
      promptLogprobs: 5,
      omitText: true,
      priority: -7,
      tenant: "t",
      expectedOutputTokens: 8,
      requestId: "r",
    });
    const unset = [message, message.sampling, message.stopping, message.output].flatMap((part) => {
      assert.ok(part);
      return Object.entries(part).filter(([, value]) => value === undefined || value === "" || value === 0);
    });
    assert.deepEqual(unset, []);
    assert.equal(message.sampling?.seed, 2n ** 62n);
    assert.deepEqual(message.sampling?.logitBias, { 3: -100 });
    assert.deepEqual(message.sampling?.constraint, { case: "regex", value: "a+" });
  });

  it("takes a JSON schema as JSON or as the value", () => {
    const schema = { type: "object" };
    for (const jsonSchema of [schema, JSON.stringify(schema)]) {
      const constraint = sent("a", { jsonSchema }).sampling?.constraint;
      assert.deepEqual(constraint, { case: "jsonSchema", value: '{"type":"object"}' });
    }
  });

  it("has room for one form", () => {
    assert.throws(() => generateRequest("a", { regex: "a", grammar: 'start: "a"' }), /not regex and grammar/);
  });

  it("asks for the tokens of text or of a conversation", () => {
    assert.equal(tokenizeRequest("").input.case, "text");
    assert.equal(tokenizeRequest([{ role: "user", content: "a" }]).input.case, "messages");
  });
});
