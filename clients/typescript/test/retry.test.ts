import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { status } from "@grpc/grpc-js";
import { errorFromCall, MetronomeError } from "../src/errors.js";
import { failureOf } from "../src/failure.js";
import { DEFAULT_RETRY, pauseMs, remedyOf } from "../src/retry.js";

function failure(code: status, retryDelayMs?: number): MetronomeError {
  return new MetronomeError({ ...failureOf({ code, details: "" }), retryDelayMs });
}

describe("a retry", () => {
  it("follows what is over soon, and nothing else", () => {
    const codes = Object.values(status).filter((code) => typeof code === "number");
    const transient = codes.filter((code) => remedyOf(errorFromCall({ code, details: "" })) !== "none");
    assert.deepEqual(transient, [status.UNAVAILABLE]);
    assert.equal(remedyOf(failure(status.RESOURCE_EXHAUSTED, 0)), "anywhere");
    assert.equal(remedyOf(failure(status.INVALID_ARGUMENT, 0)), "none");
    assert.equal(pauseMs(1, failure(status.INTERNAL), DEFAULT_RETRY, true), undefined);
  });

  it("waits a random part of a growing time", () => {
    const error = failure(status.UNAVAILABLE);
    const retry = { ...DEFAULT_RETRY, maxAttempts: 9 };
    const longest = [1, 2, 3, 6, 7, 8, 9].map((attempt) => pauseMs(attempt, error, retry, false, () => 1));
    assert.deepEqual(longest, [100, 200, 400, 3200, 5000, 5000, undefined]);
    assert.equal(
      pauseMs(3, error, DEFAULT_RETRY, false, () => 0),
      0,
    );
  });

  it("waits as long as the service says at least", () => {
    const error = failure(status.RESOURCE_EXHAUSTED, 3000);
    assert.equal(
      pauseMs(1, error, DEFAULT_RETRY, false, () => 0.5),
      3050,
    );
  });

  it("goes elsewhere alone where an executor drains", () => {
    const draining = new MetronomeError({ ...failure(status.UNAVAILABLE, 1000), reason: "DRAINING" });
    assert.equal(pauseMs(1, draining, DEFAULT_RETRY, true), 0);
    assert.equal(pauseMs(1, draining, DEFAULT_RETRY, false), undefined);
  });

  it("goes to another address at once", () => {
    assert.equal(pauseMs(1, failure(status.UNAVAILABLE, 1000), DEFAULT_RETRY, true), 0);
  });
});
