/**
 * The errors of calls, as classes.
 *
 *     MetronomeError                  code, reason, metadata, what is at fault, when to try again
 *     ├── InvalidArgumentError        one class for each status code that the services use,
 *     │   ├── ExceedsModelLenError    and below it one for each reason of the contract
 *     │   └── ...
 *     ├── UnavailableError
 *     └── ...
 *
 * A reason that this client is too old to know is an error of its status code's class, with the reason's name in `reason`.
 */

import {
  type Code,
  type Failure,
  type FieldViolation,
  failureOf,
  type QuotaViolation,
  type StatusOfCall,
} from "./failure.js";
import type { ErrorReason as InferenceReason } from "./gen/metronome/inference/v1/error_reason_pb.js";
import type { ErrorReason as SchedulerReason } from "./gen/metronome/scheduler/v1/error_reason_pb.js";

/** The reasons of the contract, by name. */
export type Reason = Exclude<keyof typeof InferenceReason | keyof typeof SchedulerReason, "UNSPECIFIED">;

/**
 * A call that failed.
 *
 * `reason` is a name of the contract's `ErrorReason` without its prefix ("EXCEEDS_MODEL_LEN"), `domain` says whose reason it
 * is, and `metadata` has its figures; all are empty where the transport failed, or a deadline passed, and no service spoke.
 */
export class MetronomeError extends Error {
  readonly code: Code;
  readonly reason: string;
  readonly domain: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly fieldViolations: readonly FieldViolation[];
  readonly quotaViolations: readonly QuotaViolation[];
  readonly retryDelayMs: number | undefined;

  constructor(failure: Failure) {
    super(failure.message);
    this.name = new.target.name;
    this.code = failure.code;
    this.reason = failure.reason;
    this.domain = failure.domain;
    this.metadata = failure.metadata;
    this.fieldViolations = failure.fieldViolations;
    this.quotaViolations = failure.quotaViolations;
    this.retryDelayMs = failure.retryDelayMs;
  }
}

/** The request was cancelled, by whoever knows its id. (What its own `AbortSignal` ends throws the signal's reason.) */
export class CancelledError extends MetronomeError {}

/** The request is at fault; sent again it fails again. */
export class InvalidArgumentError extends MetronomeError {}
export class ColumnLengthError extends InvalidArgumentError {}
export class DuplicateError extends InvalidArgumentError {}
export class EmptyPromptError extends InvalidArgumentError {}
export class ExceedsKvCacheError extends InvalidArgumentError {}
export class ExceedsModelLenError extends InvalidArgumentError {}
export class InconsistentError extends InvalidArgumentError {}
export class InvalidConstraintError extends InvalidArgumentError {}
export class InvalidTextError extends InvalidArgumentError {}
export class MalformedMessageError extends InvalidArgumentError {}
export class MissingFieldError extends InvalidArgumentError {}
export class NoTokenAllowedError extends InvalidArgumentError {}
export class OutOfRangeError extends InvalidArgumentError {}
export class PolicyConflictError extends InvalidArgumentError {}
export class UnknownProfileError extends InvalidArgumentError {}
export class UnknownTokenError extends InvalidArgumentError {}
export class UnknownValueError extends InvalidArgumentError {}

/** The deadline passed: the service said so, or did not answer in time. */
export class DeadlineExceededError extends MetronomeError {}
export class DeadlineError extends DeadlineExceededError {}

export class NotFoundError extends MetronomeError {}
export class UnknownRequestIdError extends NotFoundError {}

export class AlreadyExistsError extends MetronomeError {}
export class DuplicateRequestIdError extends AlreadyExistsError {}

/** The token lacks a right. */
export class PermissionDeniedError extends MetronomeError {}
export class NotAllowedError extends PermissionDeniedError {}

/** There is no token, or a wrong one. */
export class UnauthenticatedError extends MetronomeError {}
export class UnknownCallerError extends UnauthenticatedError {}

/** A limit was reached. `retryDelayMs` says when to come again; undefined: that is of no use. */
export class ResourceExhaustedError extends MetronomeError {}
/** The message is larger than the other side, or this client, takes. */
export class MessageTooLargeError extends ResourceExhaustedError {}
export class QueueFullError extends ResourceExhaustedError {}
export class RejectedBySchedulerError extends ResourceExhaustedError {}
export class TenantOverLimitError extends ResourceExhaustedError {}
export class TooManyCallsError extends ResourceExhaustedError {}

export class FailedPreconditionError extends MetronomeError {}
export class NoChatTemplateError extends FailedPreconditionError {}

/** The service does not offer it. */
export class UnimplementedError extends MetronomeError {}
export class NotOfferedError extends UnimplementedError {}

/** The service failed. */
export class InternalError extends MetronomeError {}
export class InvalidLogitsError extends InternalError {}
export class RequestFailedError extends InternalError {}
export class SchedulerFailedError extends InternalError {}

/** Nobody answers, the connection broke, its certificate was refused (the message says so), or the service takes nothing now. */
export class UnavailableError extends MetronomeError {}
export class DrainingError extends UnavailableError {}
export class ModelLoadingError extends UnavailableError {}

type ErrorClass = new (failure: Failure) => MetronomeError;

const BY_REASON = {
  CANCELLED: CancelledError,
  COLUMN_LENGTH: ColumnLengthError,
  DEADLINE: DeadlineError,
  DRAINING: DrainingError,
  DUPLICATE: DuplicateError,
  DUPLICATE_REQUEST_ID: DuplicateRequestIdError,
  EMPTY_PROMPT: EmptyPromptError,
  EXCEEDS_KV_CACHE: ExceedsKvCacheError,
  EXCEEDS_MODEL_LEN: ExceedsModelLenError,
  INCONSISTENT: InconsistentError,
  INVALID_CONSTRAINT: InvalidConstraintError,
  INVALID_LOGITS: InvalidLogitsError,
  INVALID_TEXT: InvalidTextError,
  MALFORMED_MESSAGE: MalformedMessageError,
  MESSAGE_TOO_LARGE: MessageTooLargeError,
  MISSING_FIELD: MissingFieldError,
  MODEL_LOADING: ModelLoadingError,
  NO_CHAT_TEMPLATE: NoChatTemplateError,
  NO_TOKEN_ALLOWED: NoTokenAllowedError,
  NOT_ALLOWED: NotAllowedError,
  NOT_OFFERED: NotOfferedError,
  OUT_OF_RANGE: OutOfRangeError,
  POLICY_CONFLICT: PolicyConflictError,
  QUEUE_FULL: QueueFullError,
  REJECTED_BY_SCHEDULER: RejectedBySchedulerError,
  REQUEST_FAILED: RequestFailedError,
  SCHEDULER_FAILED: SchedulerFailedError,
  TENANT_OVER_LIMIT: TenantOverLimitError,
  TOO_MANY_CALLS: TooManyCallsError,
  UNKNOWN_CALLER: UnknownCallerError,
  UNKNOWN_PROFILE: UnknownProfileError,
  UNKNOWN_REQUEST_ID: UnknownRequestIdError,
  UNKNOWN_TOKEN: UnknownTokenError,
  UNKNOWN_VALUE: UnknownValueError,
} as const satisfies Record<Reason, ErrorClass>; // a reason that the contract gains does not compile before it has a class

const BY_CODE: Partial<Record<Code, ErrorClass>> = {
  ALREADY_EXISTS: AlreadyExistsError,
  CANCELLED: CancelledError,
  DEADLINE_EXCEEDED: DeadlineExceededError,
  FAILED_PRECONDITION: FailedPreconditionError,
  INTERNAL: InternalError,
  INVALID_ARGUMENT: InvalidArgumentError,
  NOT_FOUND: NotFoundError,
  PERMISSION_DENIED: PermissionDeniedError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  UNAUTHENTICATED: UnauthenticatedError,
  UNAVAILABLE: UnavailableError,
  UNIMPLEMENTED: UnimplementedError,
};

// gRPC refuses a message over a limit before the service sees it, in words of its own and without details.
const TOO_LARGE = /(message|size) larger than/i;

// A connection that the server ends with an error is told as INTERNAL by gRPC for Node, and as UNAVAILABLE by all others.
const BROKEN = /RST_STREAM.*session closed/i;

/** The error of a failed call. */
export function errorFromCall(call: StatusOfCall): MetronomeError {
  const failure = failureOf(call);
  if (failure.code === "INTERNAL" && failure.reason === "" && BROKEN.test(failure.message)) {
    return new UnavailableError({ ...failure, code: "UNAVAILABLE" });
  }
  if (failure.code === "RESOURCE_EXHAUSTED" && failure.reason === "" && TOO_LARGE.test(failure.message)) {
    return new MessageTooLargeError({ ...failure, reason: "MESSAGE_TOO_LARGE" });
  }
  const byReason = Object.hasOwn(BY_REASON, failure.reason) ? BY_REASON[failure.reason as Reason] : undefined;
  return new (byReason ?? BY_CODE[failure.code] ?? MetronomeError)(failure);
}
