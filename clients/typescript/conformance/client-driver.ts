/**
 * Lets the conformance kit use this client, so that the same scenarios show what its users see of every fault.
 *
 *     metronome conformance client 'node build/typescript/conformance/client-driver.js'
 *
 * It reads one JSON object a line from stdin and writes one a line to stdout; ../../conformance/README.md has the protocol. The kit
 * does all the judging.
 */

import { createInterface } from "node:readline";
import {
  type ChannelSettings,
  type ClientOptions,
  type Event,
  type GenerateOptions,
  InferenceClient,
  MetronomeError,
  SchedulerClient,
} from "../src/index.js";

interface Settings {
  readonly addresses: readonly string[];
  readonly retry?: { max_attempts?: number; initial_backoff_s?: number; max_backoff_s?: number };
  readonly timeout_s?: number;
  readonly tls?: { readonly root_certificates: string };
  readonly token?: string;
}

interface Arguments {
  readonly prompt?: string;
  readonly options?: GenerateOptions;
  readonly timeout_s?: number;
  readonly text?: string;
  readonly request_id?: string;
  readonly times?: number;
}

interface Order {
  readonly id: number;
  readonly client?: Settings;
  readonly use?: string;
  readonly with?: Arguments;
  readonly leave_after?: number;
}

let executors: InferenceClient | undefined;
let schedulers: SchedulerClient | undefined;

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function make({ addresses, retry = {}, timeout_s, tls, token }: Settings): void {
  close();
  const channel: ChannelSettings = {
    ...(tls && { tls: { rootCertificates: tls.root_certificates } }),
    ...(token && { token }),
  };
  const options: ClientOptions = {
    ...channel,
    ...(timeout_s !== undefined && { timeoutMs: timeout_s * 1000 }),
    retry: {
      ...(retry.max_attempts !== undefined && { maxAttempts: retry.max_attempts }),
      ...(retry.initial_backoff_s !== undefined && { initialBackoffMs: retry.initial_backoff_s * 1000 }),
      ...(retry.max_backoff_s !== undefined && { maxBackoffMs: retry.max_backoff_s * 1000 }),
    },
  };
  executors = new InferenceClient(addresses, options);
  schedulers = new SchedulerClient(addresses, options);
}

function close(): void {
  executors?.close();
  schedulers?.close();
  [executors, schedulers] = [undefined, undefined];
}

/** A stream of messages, or one result. */
function call(verb: string | undefined, given: Arguments): AsyncIterable<object> | Promise<unknown> {
  if (executors === undefined || schedulers === undefined) {
    throw new Error("there is no client");
  }
  const timeout = given.timeout_s === undefined ? {} : { timeoutMs: given.timeout_s * 1000 };
  switch (verb) {
    case "generate":
      return told(executors.generate(given.prompt ?? "Hello", { ...given.options, ...timeout }), (event: Event) => ({
        kind: event.kind,
        text: event.kind === "delta" ? event.text : "",
      }));
    case "watch_state":
      return told(executors.watchState(timeout), () => ({ kind: "state" }));
    case "plan_stream":
      return told(schedulers.planStream(Array(given.times ?? 1).fill({}), timeout), () => ({ kind: "plan" }));
    case "tokenize":
      return executors.tokenize(given.text ?? "Hello", timeout);
    case "detokenize":
      return executors.detokenize([], timeout);
    case "model_info":
      return executors.modelInfo(timeout).then(({ model }) => model);
    case "state":
      return executors.state(timeout).then(() => null);
    case "cancel":
      return executors.cancel(given.request_id ?? "", timeout);
    case "drain":
      return executors.drain(timeout);
    case "plan":
      return schedulers.plan({}, timeout).then(({ plans }) => plans.map(({ executorId }) => executorId));
    case "verify":
      return schedulers.verify({}, timeout).then(() => null);
    case "place":
      return schedulers.place({}, timeout).then(() => null);
    case "list_profiles":
      return schedulers.listProfiles(timeout).then((profiles) => profiles.map(({ name }) => name));
    default:
      throw new Error(`there is no verb ${verb}`);
  }
}

async function* told<T>(messages: AsyncIterable<T>, tell: (message: T) => object): AsyncIterable<object> {
  for await (const message of messages) {
    yield tell(message);
  }
}

async function use({ id, use: verb, with: given = {}, leave_after }: Order): Promise<void> {
  const answer = call(verb, given);
  if (answer instanceof Promise) {
    say({ id, message: { result: (await answer) ?? null } });
    return;
  }
  let numMessages = 0;
  for await (const message of answer) {
    say({ id, message });
    if (++numMessages === leave_after) {
      break;
    }
  }
}

function ended(error: unknown): object {
  const classes: string[] = [];
  for (let kind = Object.getPrototypeOf(error); kind !== null; kind = Object.getPrototypeOf(kind)) {
    classes.push(kind.constructor.name);
  }
  if (!(error instanceof MetronomeError)) {
    const isRefused = error instanceof TypeError || error instanceof RangeError;
    return { code: isRefused ? "REFUSED" : "UNKNOWN", error: classes[0], classes, message: String(error) };
  }
  const { code, reason, domain, message, metadata, retryDelayMs } = error;
  return {
    ...{ code, error: error.name, classes, reason, domain, message, metadata },
    fields: error.fieldViolations.map(({ field }) => field),
    over_quota: error.quotaViolations.map(({ subject }) => subject),
    retry_delay_s: retryDelayMs === undefined ? null : retryDelayMs / 1000,
  };
}

async function take(order: Order): Promise<void> {
  try {
    order.client === undefined ? await use(order) : make(order.client);
    say({ id: order.id, end: { code: "OK" } });
  } catch (error) {
    say({ id: order.id, end: ended(error) });
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  void take(JSON.parse(line) as Order);
}
close();
