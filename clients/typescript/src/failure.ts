/**
 * What the end of a failed call says: the status code, and the `google.rpc` details that came with it.
 *
 * Details are told in a `google.rpc.Status` in the trailing metadata. Whatever in them is broken or unknown is left out: the
 * status code stands without them.
 */

import { fromBinary, type Message } from "@bufbuild/protobuf";
import type { GenMessage } from "@bufbuild/protobuf/codegenv2";
import { type Any, anyUnpack, durationMs } from "@bufbuild/protobuf/wkt";
import { type Metadata, status } from "@grpc/grpc-js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  QuotaFailureSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "./gen/google/rpc/status_pb.js";

/** The name of a gRPC status code. */
export type Code = keyof typeof status;

/** A field of the request that is at fault, and how. `field` is its path: `sampling.temperature`, `token_ids.ids[3]`. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** A limit that was reached, and whose it is. */
export interface QuotaViolation {
  readonly subject: string;
  readonly description: string;
}

/** A failed call. `reason`, `domain` and `metadata` are empty where the service gave none, which is so for errors of the transport. */
export interface Failure {
  readonly code: Code;
  readonly message: string;
  readonly reason: string;
  readonly domain: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly fieldViolations: readonly FieldViolation[];
  readonly quotaViolations: readonly QuotaViolation[];
  /** How long to wait before the call is repeated, in milliseconds; undefined: the service did not say. */
  readonly retryDelayMs: number | undefined;
}

const DETAILS_KEY = "grpc-status-details-bin";

/** What a gRPC library tells of a failed call. */
export interface StatusOfCall {
  readonly code: number;
  readonly details: string;
  readonly metadata?: Metadata;
}

/** Reads the end of a call. */
export function failureOf(call: StatusOfCall): Failure {
  const details = detailsOf(call.metadata);
  const info = find(details, ErrorInfoSchema);
  const retryDelay = find(details, RetryInfoSchema)?.retryDelay;
  const code = (status[call.code] ?? "UNKNOWN") as Code;
  return {
    code,
    message: call.details || code,
    reason: info?.reason ?? "",
    domain: info?.domain ?? "",
    metadata: info?.metadata ?? {},
    fieldViolations: (find(details, BadRequestSchema)?.fieldViolations ?? []).map(({ field, description }) => ({
      field,
      description,
    })),
    quotaViolations: (find(details, QuotaFailureSchema)?.violations ?? []).map(({ subject, description }) => ({
      subject,
      description,
    })),
    retryDelayMs: retryDelay === undefined ? undefined : Math.max(0, durationMs(retryDelay)),
  };
}

function detailsOf(metadata: Metadata | undefined): readonly Any[] {
  const bytes = metadata?.get(DETAILS_KEY)[0];
  return bytes instanceof Uint8Array ? (parsed(() => fromBinary(StatusSchema, bytes))?.details ?? []) : [];
}

function find<T extends Message>(details: readonly Any[], schema: GenMessage<T>): T | undefined {
  for (const detail of details) {
    const message = parsed(() => anyUnpack(detail, schema));
    if (message !== undefined) {
      return message as T;
    }
  }
  return undefined;
}

function parsed<T>(parse: () => T): T | undefined {
  try {
    return parse();
  } catch {
    return undefined;
  }
}
