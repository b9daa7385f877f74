/** The client of schedulers. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { CallOptions } from "./bounds.js";
import type { Requests } from "./call.js";
import { Caller, type ClientOptions } from "./caller.js";
import {
  ListProfilesRequestSchema,
  PlaceRequestSchema,
  type PlaceResponse,
  PlanRequestSchema,
  type PlanResponse,
  type Profile,
  SchedulerService,
  VerifyRequestSchema,
  type Violation,
} from "./gen/metronome/scheduler/v1/scheduler_pb.js";

/** Calls one scheduler, or several in turn: they hold nothing, so any answers any call. Every method throws a `MetronomeError`. */
export class SchedulerClient {
  readonly #caller: Caller;

  /** `addresses`: one or more host:port. Throws TypeError for settings that make no sense. */
  constructor(addresses: string | readonly string[], options: ClientOptions = {}) {
    this.#caller = new Caller(addresses, SchedulerService.typeName, options);
  }

  /** Closes the channels. */
  close(): void {
    this.#caller.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Asks for the plan of a state; `requestTable` writes the table of requests. It changes nothing anywhere. */
  async plan(request: MessageInitShape<typeof PlanRequestSchema>, options: CallOptions = {}): Promise<PlanResponse> {
    return this.#caller.unary(SchedulerService.method.plan, create(PlanRequestSchema, request), options);
  }

  /**
   * Asks for plan after plan on one stream: each request is answered in order, as `plan` would.
   *
   * `requests` is read ahead of the answers. Leaving the loop ends the stream, and `requests` with it. Without `timeoutMs` it has
   * no deadline. A stream that breaks is not begun again by itself: requests hold all, so go on with the next on a new one.
   */
  planStream(
    requests: Requests<typeof PlanRequestSchema>,
    { signal, timeoutMs = Number.POSITIVE_INFINITY }: CallOptions = {},
  ): AsyncGenerator<PlanResponse, void, undefined> {
    return this.#caller.bidi(SchedulerService.method.planStream, requests, { signal, timeoutMs });
  }

  /** Asks which invariants a plan breaks; none: it keeps them all. */
  async verify(request: MessageInitShape<typeof VerifyRequestSchema>, options: CallOptions = {}): Promise<Violation[]> {
    const message = create(VerifyRequestSchema, request);
    return (await this.#caller.unary(SchedulerService.method.verify, message, options)).violations;
  }

  /** Asks onto which executors to put requests that none has yet. */
  async place(request: MessageInitShape<typeof PlaceRequestSchema>, options: CallOptions = {}): Promise<PlaceResponse> {
    return this.#caller.unary(SchedulerService.method.place, create(PlaceRequestSchema, request), options);
  }

  /** Lists the named policies of the scheduler. */
  async listProfiles(options: CallOptions = {}): Promise<Profile[]> {
    const request = create(ListProfilesRequestSchema);
    return (await this.#caller.unary(SchedulerService.method.listProfiles, request, options)).profiles;
  }
}
