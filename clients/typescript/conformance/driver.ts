/**
 * Makes the calls of the conformance kit from TypeScript, so that the same scenarios drive this language's messages and stubs.
 *
 *     metronome conformance scheduler 127.0.0.1:50051 --driver 'node build/typescript/conformance/driver.js'
 *
 * It reads one JSON object a line from stdin and writes one a line to stdout; ../../conformance/README.md has the protocol. The kit
 * does all the judging: nothing is tried again here, and what comes back is passed on as it is.
 */

import { createInterface } from "node:readline";
import { createRegistry, type DescMethod, fromJson, type JsonValue, toBinary, toJson } from "@bufbuild/protobuf";
import * as grpc from "@grpc/grpc-js";
import { ExecutorService } from "../src/contract/executor.js";
import { InferenceService } from "../src/contract/inference.js";
import { SchedulerService } from "../src/contract/scheduler.js";
import { serviceDefinition } from "../src/serving.js";

interface Order {
  readonly id: number;
  readonly start?: string;
  readonly address?: string;
  readonly requests?: readonly JsonValue[];
  readonly bytes?: string;
  readonly timeout_s?: number;
  readonly cancel?: boolean;
}

const REGISTRY = createRegistry(ExecutorService, InferenceService, SchedulerService);
const UNLIMITED = { "grpc.max_send_message_length": -1, "grpc.max_receive_message_length": -1 };
const channels = new Map<string, grpc.Client>();
const calls = new Map<number, { cancel(): void }>();

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function end(id: number, code: string, message: string, details?: Buffer): void {
  if (calls.delete(id)) {
    say({ id, end: { code, message, details: details?.toString("base64") ?? "" } });
  }
}

/** Begins a call. On the wire every method is a stream both ways, of one message where the contract says so. */
function start({ id, start = "", address = "", requests = [{}], bytes, timeout_s = 20 }: Order): void {
  const [service = "", name] = start.split("/");
  const method = REGISTRY.getService(service)?.methods.find((one) => one.name === name);
  if (method === undefined) {
    throw new Error(`there is no method ${start}`);
  }
  const call = channelTo(address).makeBidiStreamRequest(
    `/${service}/${name}`,
    (part: Buffer) => part,
    serviceDefinition(method.parent)[method.localName]?.responseDeserialize as (bytes: Buffer) => never,
    new grpc.Metadata(),
    { deadline: Date.now() + timeout_s * 1000 },
  );
  calls.set(id, call);
  call.on("data", (message) => say({ id, message: toJson(method.output, message, { useProtoFieldName: true }) }));
  call.on("error", () => undefined); // `status` has it
  call.on("status", ({ code, details, metadata }: grpc.StatusObject) => {
    const [binary] = metadata.get("grpc-status-details-bin");
    end(id, grpc.status[code] ?? "UNKNOWN", details, Buffer.isBuffer(binary) ? binary : undefined);
  });
  for (const part of bytes === undefined
    ? requests.map((one) => written(method, one))
    : [Buffer.from(bytes, "base64")]) {
    call.write(part);
  }
  call.end();
}

function written({ input }: DescMethod, content: JsonValue): Buffer {
  return Buffer.from(toBinary(input, fromJson(input, content)));
}

function channelTo(address: string): grpc.Client {
  const channel = channels.get(address) ?? new grpc.Client(address, grpc.credentials.createInsecure(), UNLIMITED);
  channels.set(address, channel);
  return channel;
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line) as Order;
  if (order.cancel) {
    calls.get(order.id)?.cancel();
  } else {
    try {
      start(order);
    } catch (error) {
      calls.set(order.id, { cancel: () => undefined });
      end(order.id, "INTERNAL", `the driver cannot send it: ${error}`);
    }
  }
}
for (const call of calls.values()) {
  call.cancel();
}
for (const channel of channels.values()) {
  channel.close();
}
