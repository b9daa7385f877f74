/** One try of a call on one channel: promises and iterables over gRPC, with errors of the contract. */

import { once } from "node:events";
import {
  create,
  type DescMessage,
  type DescMethodBiDiStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import {
  type Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  type ClientUnaryCall,
  Metadata,
  type ServiceError,
} from "@grpc/grpc-js";
import type { Bounds } from "./bounds.js";
import { errorFromCall } from "./errors.js";

/** What a stream of requests is read from. */
export type Requests<I extends DescMessage> = Iterable<MessageInitShape<I>> | AsyncIterable<MessageInitShape<I>>;

/** Calls a method that answers once. Throws MetronomeError, or the reason of the signal that ended it. */
export async function unaryOnce<I extends DescMessage, O extends DescMessage>(
  channel: Client,
  method: DescMethodUnary<I, O>,
  request: MessageShape<I>,
  bounds: Bounds,
): Promise<MessageShape<O>> {
  bounds.throwIfEnded();
  const bytes = serialized(method.input, request);
  let call: ClientUnaryCall | undefined;
  const forget = bounds.whenEnded(() => call?.cancel());
  try {
    return await new Promise<MessageShape<O>>((resolve, reject) => {
      call = channel.makeUnaryRequest(
        pathOf(method),
        asItIs,
        (answer: Buffer) => fromBinary(method.output, answer),
        bytes,
        new Metadata(),
        { deadline: bounds.deadlineMs },
        (error, answer) => (answer === undefined ? reject(error) : resolve(answer)),
      );
    });
  } catch (error) {
    bounds.throwIfEnded();
    throw readable(error);
  } finally {
    forget();
  }
}

/**
 * Calls a method that answers with a stream. Leaving the loop cancels the call. Throws MetronomeError, or the reason of the signal that ended it.
 *
 * A reader that is slow slows the sender: messages are taken as they are asked for.
 */
export async function* streamOnce<I extends DescMessage, O extends DescMessage>(
  channel: Client,
  method: DescMethodServerStreaming<I, O>,
  request: MessageShape<I>,
  bounds: Bounds,
): AsyncGenerator<MessageShape<O>, void, undefined> {
  bounds.throwIfEnded();
  const call: ClientReadableStream<MessageShape<O>> = channel.makeServerStreamRequest(
    pathOf(method),
    asItIs,
    (answer: Buffer) => fromBinary(method.output, answer),
    serialized(method.input, request),
    new Metadata(),
    { deadline: bounds.deadlineMs },
  );
  call.on("error", () => undefined); // what comes after the loop was left: that it was cancelled
  const forget = bounds.whenEnded(() => call.cancel());
  try {
    for await (const message of call as AsyncIterable<MessageShape<O>>) {
      bounds.throwIfEnded();
      yield message;
    }
  } catch (error) {
    bounds.throwIfEnded();
    throw readable(error);
  } finally {
    forget();
    call.cancel();
  }
}

/**
 * Calls a method with a stream each way. Leaving the loop cancels the call, and what gave the requests is told to end.
 *
 * Throws MetronomeError, the reason of the signal that ended it, or what the requests' own source threw.
 */
export async function* bidiOnce<I extends DescMessage, O extends DescMessage>(
  channel: Client,
  method: DescMethodBiDiStreaming<I, O>,
  requests: Requests<I>,
  bounds: Bounds,
): AsyncGenerator<MessageShape<O>, void, undefined> {
  bounds.throwIfEnded();
  const call: ClientDuplexStream<Buffer, MessageShape<O>> = channel.makeBidiStreamRequest(
    pathOf(method),
    asItIs,
    (answer: Buffer) => fromBinary(method.output, answer),
    new Metadata(),
    { deadline: bounds.deadlineMs },
  );
  call.on("error", () => undefined); // what comes after the loop was left: that it was cancelled
  const forget = bounds.whenEnded(() => call.cancel());
  const ended = new AbortController();
  let fault: unknown;
  sendAll(call, method.input, requests, ended.signal).catch((error: unknown) => {
    fault ??= error;
    call.cancel();
  });
  try {
    for await (const message of call as AsyncIterable<MessageShape<O>>) {
      bounds.throwIfEnded();
      yield message;
    }
  } catch (error) {
    bounds.throwIfEnded();
    throw fault ?? readable(error);
  } finally {
    ended.abort();
    forget();
    call.cancel();
  }
  if (fault !== undefined) {
    throw fault; // a call that is cancelled before it began ends without a word
  }
}

/** As fast as the other side takes them. */
async function sendAll<I extends DescMessage>(
  call: ClientDuplexStream<Buffer, unknown>,
  schema: I,
  requests: Requests<I>,
  ended: AbortSignal,
): Promise<void> {
  for await (const request of requests) {
    if (ended.aborted) {
      return;
    }
    const isFull = !call.write(serialized(schema, create(schema, request)));
    if (isFull && !(await drained(call, ended))) {
      return;
    }
  }
  call.end();
}

/** Whether more may be written; else the call is over, and its answers' end says why. */
async function drained(call: ClientDuplexStream<Buffer, unknown>, ended: AbortSignal): Promise<boolean> {
  try {
    await once(call, "drain", { signal: ended });
    return true;
  } catch {
    return false;
  }
}

function pathOf(method: DescMethodUnary | DescMethodServerStreaming | DescMethodBiDiStreaming): string {
  return `/${method.parent.typeName}/${method.name}`;
}

/** Throws RangeError where a value does not fit into its field: a fraction where a whole number belongs. */
function serialized<D extends DescMessage>(schema: D, message: MessageShape<D>): Buffer {
  try {
    return Buffer.from(toBinary(schema, message));
  } catch (error) {
    throw new RangeError(`the request has a value that its field cannot hold: ${messageOf(error)}`, { cause: error });
  }
}

function asItIs(bytes: Buffer): Buffer {
  return bytes;
}

function readable(error: unknown): unknown {
  return isStatus(error) ? errorFromCall(error) : error;
}

function isStatus(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && typeof error.code === "number" && "details" in error;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
