/**
 * The far side of the contract, for executors and schedulers of your own: plain functions become methods of a gRPC server.
 *
 *     implement(server, InferenceService, "executor.metronome", {
 *       async tokenize({ input }) { return { tokenIds: ... }; },
 *       async *generate(request, { signal }) { yield { event: ... }; },
 *     });
 *
 * What they throw as a `Refusal` is the status of the call, with the details that the contract asks for. Bytes that are no
 * message are refused before they are called, and methods that are not there are NOT_OFFERED.
 */

import { once } from "node:events";
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescService,
  fromBinary,
  type Message,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { anyPack, durationFromMs } from "@bufbuild/protobuf/wkt";
import * as grpc from "@grpc/grpc-js";
import type { Reason } from "./errors.js";
import type { Code } from "./failure.js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  QuotaFailureSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "./gen/google/rpc/status_pb.js";

/** What a refusal may say besides its reason. `field`: the path of the field at fault; `subject`: whose limit was reached. */
export interface RefusalDetails {
  readonly field?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly retryDelayMs?: number;
  readonly subject?: string;
}

/** Thrown by a method to end its call. */
export class Refusal extends Error {
  readonly code: Code;
  readonly reason: Reason;
  readonly details: RefusalDetails;

  constructor(code: Code, reason: Reason, message: string, details: RefusalDetails = {}) {
    super(message);
    this.name = "Refusal";
    this.code = code;
    this.reason = reason;
    this.details = details;
  }
}

/** A call as its method sees it. The signal is aborted when the client has left, or the deadline has passed. */
export interface ServedCall {
  readonly signal: AbortSignal;
  /** Unix time in milliseconds; `Infinity`: none. */
  readonly deadlineMs: number;
}

type Handler<M> = M extends {
  methodKind: "unary";
  input: infer I extends DescMessage;
  output: infer O extends DescMessage;
}
  ? (request: MessageShape<I>, call: ServedCall) => Promise<MessageInitShape<O>>
  : M extends {
        methodKind: "server_streaming";
        input: infer I extends DescMessage;
        output: infer O extends DescMessage;
      }
    ? (request: MessageShape<I>, call: ServedCall) => AsyncIterable<MessageInitShape<O>>
    : never;

/** The methods of a service, by their names in camel case. Those to which the client sends a stream cannot be given here. */
export type Handlers<S extends DescService> = { readonly [K in keyof S["method"]]?: Handler<S["method"][K]> };

/** Adds a service to a server. `domain`: whose reasons they are, "executor.metronome" or "scheduler.metronome". */
export function implement<S extends DescService>(
  server: grpc.Server,
  service: S,
  domain: string,
  handlers: Handlers<S>,
): void {
  const given = handlers as Readonly<Record<string, AnyHandler | undefined>>;
  const methods = service.methods.flatMap((method) => {
    const serve = { unary, server_streaming: stream, client_streaming: undefined, bidi_streaming: undefined };
    const handle = given[method.localName]?.bind(handlers) ?? notOffered(method);
    const served = serve[method.methodKind]?.(method, handle, domain);
    return served === undefined ? [] : [[method.localName, served] as const];
  });
  server.addService(serviceDefinition(service, { parse: false }), Object.fromEntries(methods));
}

/**
 * The methods of a service as `@grpc/grpc-js` wants them, by their names in camel case.
 *
 * Requests and responses are messages of `@bufbuild/protobuf`, or with `parse: false` requests are bytes.
 */
export function serviceDefinition(service: DescService, { parse = true } = {}): grpc.ServiceDefinition {
  return Object.fromEntries(
    service.methods.map(({ name, localName, methodKind, input, output }) => [
      localName,
      {
        path: `/${service.typeName}/${name}`,
        requestStream: methodKind === "client_streaming" || methodKind === "bidi_streaming",
        responseStream: methodKind === "server_streaming" || methodKind === "bidi_streaming",
        requestSerialize: (message: Message) => Buffer.from(toBinary(input, message)),
        requestDeserialize: (bytes: Buffer) => (parse ? fromBinary(input, bytes) : bytes),
        responseSerialize: (message: Message) => Buffer.from(toBinary(output, message)),
        responseDeserialize: (bytes: Buffer) => fromBinary(output, bytes),
      },
    ]),
  );
}

type Content = Record<string, unknown>;
type AnyHandler = (request: Message, call: ServedCall) => Promise<Content> | AsyncIterable<Content>;
type AnyCall = grpc.ServerUnaryCall<Buffer, Message> | grpc.ServerWritableStream<Buffer, Message>;

function unary(method: DescMethod, handle: AnyHandler, domain: string): grpc.handleUnaryCall<Buffer, Message> {
  return (call, answer) => {
    Promise.resolve()
      .then(() => handle(parsed(method.input, call.request), servedCall(call)) as Promise<Content>)
      .then(
        (response) => answer(null, create(method.output, response)),
        (error: unknown) => answer(statusOf(error, domain)),
      );
  };
}

function stream(
  method: DescMethod,
  handle: AnyHandler,
  domain: string,
): grpc.handleServerStreamingCall<Buffer, Message> {
  return (call) => {
    const { signal, ...served } = servedCall(call);
    async function answer(): Promise<void> {
      const responses = handle(parsed(method.input, call.request), { signal, ...served }) as AsyncIterable<Content>;
      for await (const response of responses) {
        if (!signal.aborted && !call.write(create(method.output, response))) {
          await once(call, "drain", { signal });
        }
      }
    }
    answer().then(
      () => call.end(),
      (error: unknown) => (signal.aborted ? call.end() : call.emit("error", statusOf(error, domain))),
    );
  };
}

function servedCall(call: AnyCall): ServedCall {
  const left = new AbortController();
  call.on("cancelled", () => left.abort());
  return { signal: left.signal, deadlineMs: Number(call.getDeadline()) };
}

function parsed(schema: DescMessage, bytes: Buffer): Message {
  try {
    return fromBinary(schema, bytes);
  } catch (error) {
    throw new Refusal("INVALID_ARGUMENT", "MALFORMED_MESSAGE", `the request is no ${schema.name}: ${error}`);
  }
}

function notOffered({ name }: DescMethod): AnyHandler {
  return () => {
    throw new Refusal("UNIMPLEMENTED", "NOT_OFFERED", `${name} is not offered here`);
  };
}

function statusOf(error: unknown, domain: string): Partial<grpc.StatusObject> {
  if (!(error instanceof Refusal)) {
    console.error(error);
    return { code: grpc.status.INTERNAL, details: "this server failed; its log has the cause" };
  }
  const { field, metadata = {}, retryDelayMs, subject } = error.details;
  const figures = field === undefined ? metadata : { ...metadata, field };
  const details = [
    anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason: error.reason, domain, metadata: figures })),
  ];
  const description = error.message;
  if (field !== undefined) {
    details.push(anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [{ field, description }] })));
  }
  if (retryDelayMs !== undefined) {
    const retryDelay = durationFromMs(retryDelayMs);
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  if (subject !== undefined) {
    details.push(anyPack(QuotaFailureSchema, create(QuotaFailureSchema, { violations: [{ subject, description }] })));
  }
  const code = grpc.status[error.code];
  const trailers = new grpc.Metadata();
  const status = create(StatusSchema, { code, message: error.message, details });
  trailers.set("grpc-status-details-bin", Buffer.from(toBinary(StatusSchema, status)));
  return { code, details: error.message, metadata: trailers };
}
