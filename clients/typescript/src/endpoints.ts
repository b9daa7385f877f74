/**
 * The addresses of a client, and whose turn it is.
 *
 * Calls go round the addresses that say SERVING by `grpc.health.v1`. Each address has a channel of its own, so that each
 * server is held to the certificate of its own name, and a channel looks up names and reconnects by itself. gRPC for Node
 * offers no health checking of its own (docs/adr/0022-the-typescript-client.md).
 */

import { create } from "@bufbuild/protobuf";
import { type Client, status } from "@grpc/grpc-js";
import { Bounds } from "./bounds.js";
import { streamOnce } from "./call.js";
import { type ChannelSettings, openChannel } from "./channel.js";
import { errorFromCall, MetronomeError, UnimplementedError } from "./errors.js";
import {
  HealthCheckRequestSchema,
  HealthCheckResponse_ServingStatus,
  Health as HealthService,
} from "./gen/grpc_health/v1/health_pb.js";

/** What is known of a server. Unknown until it has said something, or cannot be reached. */
export type Health = "serving" | "unknown" | "not serving";

const RANKS: Record<Health, number> = { serving: 0, unknown: 1, "not serving": 2 };
const HEALTH_BACKOFF_MS = 1_000;

/** One server. */
export class Endpoint {
  readonly address: string;
  readonly channel: Client;
  health: Health = "unknown";

  constructor(address: string, settings: ChannelSettings) {
    this.address = address;
    this.channel = openChannel(address, settings);
  }

  /** Follows the health of a service until the signal ends it. */
  async watch(service: string, signal: AbortSignal): Promise<void> {
    const request = create(HealthCheckRequestSchema, { service });
    const bounds = new Bounds(Number.POSITIVE_INFINITY, signal);
    while (!signal.aborted) {
      try {
        for await (const answer of streamOnce(this.channel, HealthService.method.watch, request, bounds)) {
          this.health = answer.status === HealthCheckResponse_ServingStatus.SERVING ? "serving" : "not serving";
        }
      } catch (error) {
        if (error instanceof UnimplementedError) {
          this.health = "serving"; // it has no health service: as good as its answers
          return;
        }
        if (signal.aborted || !(error instanceof MetronomeError)) {
          return;
        }
      }
      this.health = "not serving";
      await bounds.pause(HEALTH_BACKOFF_MS * Math.random()).catch(() => undefined);
    }
  }
}

/** All servers of a client. One alone is not watched: there is nobody to go to instead. */
export class Endpoints {
  readonly #all: readonly Endpoint[];
  readonly #service: string;
  readonly #closed = new AbortController();
  #turn = 0;
  #isWatching = false;

  /** `service`: whose health to follow. Throws TypeError where there is no address. */
  constructor(addresses: string | readonly string[], service: string, settings: ChannelSettings) {
    const list = typeof addresses === "string" ? [addresses] : [...new Set(addresses)];
    if (list.length === 0 || list.includes("")) {
      throw new TypeError("a client needs an address, as host:port");
    }
    this.#all = list.map((address) => new Endpoint(address, settings));
    this.#service = service;
  }

  get all(): readonly Endpoint[] {
    return this.#all;
  }

  /** The next one in turn, of those that were not tried and are in the best health. */
  next(tried: ReadonlySet<Endpoint>): Endpoint {
    this.#watch();
    const left = this.#all.filter((endpoint) => !tried.has(endpoint));
    const candidates = left.length > 0 ? left : this.#all;
    const best = Math.min(...candidates.map(({ health }) => RANKS[health]));
    const healthiest = candidates.filter(({ health }) => RANKS[health] === best);
    return healthiest[this.#turn++ % healthiest.length] as Endpoint;
  }

  /** The one that an address names, or the only one. Throws TypeError where that is none. */
  named(address: string | undefined): Endpoint {
    const found = this.#all.filter((endpoint) => address === undefined || endpoint.address === address);
    const [only] = found;
    if (only === undefined || found.length > 1) {
      const known = this.#all.map((endpoint) => endpoint.address).join(", ");
      throw new TypeError(`this concerns one server: \`address\` must be one of ${known}`);
    }
    return only;
  }

  /** Aborted, with the error of the calls that it ends, when the client is closed. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  /** Ends every call, and the channels. */
  close(): void {
    this.#closed.abort(errorFromCall({ code: status.CANCELLED, details: "the client was closed" }));
    for (const { channel } of this.#all) {
      channel.close();
    }
  }

  #watch(): void {
    if (this.#isWatching || this.#all.length === 1) {
      return;
    }
    this.#isWatching = true;
    for (const endpoint of this.#all) {
      void endpoint.watch(this.#service, this.#closed.signal);
    }
  }
}
