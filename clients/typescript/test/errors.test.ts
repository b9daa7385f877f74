import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { create, type DescMessage, type MessageShape, toBinary } from "@bufbuild/protobuf";
import { anyPack, durationFromMs } from "@bufbuild/protobuf/wkt";
import { Metadata, status } from "@grpc/grpc-js";
import { ErrorReason as InferenceReason } from "../src/contract/inference.js";
import { ErrorReason as SchedulerReason } from "../src/contract/scheduler.js";
import { errorFromCall } from "../src/errors.js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  HelpSchema,
  QuotaFailureSchema,
  RetryInfoSchema,
} from "../src/gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../src/gen/google/rpc/status_pb.js";
import * as client from "../src/index.js";

const EXPORTS = new Map<string, unknown>(Object.entries(client));

function failed(code: status, bytes?: Uint8Array, details = "no") {
  const metadata = new Metadata();
  if (bytes !== undefined) {
    metadata.set("grpc-status-details-bin", Buffer.from(bytes));
  }
  return errorFromCall({ code, details, metadata });
}

function packed<D extends DescMessage>(schema: D, message: MessageShape<D>) {
  return anyPack(schema, message);
}

function withReason(code: status, reason: string) {
  const info = packed(ErrorInfoSchema, create(ErrorInfoSchema, { reason, domain: "d", metadata: { a: "b" } }));
  return failed(code, toBinary(StatusSchema, create(StatusSchema, { details: [info] })));
}

describe("an error", () => {
  const names = [...Object.keys(InferenceReason), ...Object.keys(SchedulerReason)];
  for (const reason of new Set(names.filter((name) => name !== "UNSPECIFIED" && Number.isNaN(Number(name))))) {
    it(`has a class for ${reason}`, () => {
      const words = reason.split("_").map((word) => word[0] + word.slice(1).toLowerCase());
      const error = withReason(status.INTERNAL, reason);
      assert.equal(error.name, `${words.join("")}Error`);
      assert.equal(error.constructor, EXPORTS.get(error.name));
      assert.ok(error instanceof client.MetronomeError);
      assert.deepEqual([error.reason, error.domain, error.metadata], [reason, "d", { a: "b" }]);
    });
  }

  it("of a later contract is one of its status code", () => {
    for (const reason of ["MOON_IS_FULL", "constructor", "__proto__"]) {
      const error = withReason(status.FAILED_PRECONDITION, reason);
      assert.equal(error.constructor, client.FailedPreconditionError);
      assert.equal(error.reason, reason);
    }
  });

  it("of a status code that no service uses is a MetronomeError", () => {
    const error = failed(status.DATA_LOSS);
    assert.equal(error.constructor, client.MetronomeError);
    assert.equal(error.code, "DATA_LOSS");
    assert.equal(failed(99 as status).code, "UNKNOWN");
  });

  it("carries every detail, and passes over those that it does not know", () => {
    const details = [
      packed(HelpSchema, create(HelpSchema, { links: [{ url: "u" }] })),
      packed(RetryInfoSchema, create(RetryInfoSchema, { retryDelay: durationFromMs(1500) })),
      packed(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [{ field: "text", description: "x" }] })),
      packed(
        QuotaFailureSchema,
        create(QuotaFailureSchema, { violations: [{ subject: "tenant:a", description: "y" }] }),
      ),
    ];
    const error = failed(status.RESOURCE_EXHAUSTED, toBinary(StatusSchema, create(StatusSchema, { details })));
    assert.equal(error.constructor, client.ResourceExhaustedError);
    assert.equal(error.retryDelayMs, 1500);
    assert.deepEqual(error.fieldViolations, [{ field: "text", description: "x" }]);
    assert.deepEqual(error.quotaViolations, [{ subject: "tenant:a", description: "y" }]);
  });

  it("stands without details that are broken", () => {
    const broken = create(StatusSchema, {
      details: [{ typeUrl: "type.googleapis.com/google.rpc.ErrorInfo", value: new Uint8Array([255, 255]) }],
    });
    for (const bytes of [new Uint8Array([255, 255, 255]), toBinary(StatusSchema, broken), new Uint8Array()]) {
      const error = failed(status.UNAVAILABLE, bytes);
      assert.equal(error.constructor, client.UnavailableError);
      assert.equal(error.reason, "");
      assert.equal(error.message, "no");
    }
  });

  it("has a message always", () => assert.equal(failed(status.UNAVAILABLE, undefined, "").message, "UNAVAILABLE"));

  it("of a message over the limit has its reason, whichever side refused it", () => {
    const told = [
      "SERVER: Received message larger than max (70000000 vs. 67108864)",
      "CLIENT: Sent message larger than max (70000000 vs. 67108864)",
      "Received message larger than max (70000000 vs 67108864)",
      "Attempted to send message with a size larger than 67108864",
    ];
    for (const details of told) {
      const error = failed(status.RESOURCE_EXHAUSTED, undefined, details);
      assert.equal(error.constructor, client.MessageTooLargeError, details);
      assert.equal(error.reason, "MESSAGE_TOO_LARGE");
    }
    assert.equal(failed(status.RESOURCE_EXHAUSTED).constructor, client.ResourceExhaustedError);
  });
});
