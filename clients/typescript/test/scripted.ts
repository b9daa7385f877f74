/** The far side of the wire where a test needs a server that misbehaves, or that counts: it answers from a script. */

import { create, toBinary } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import * as grpc from "@grpc/grpc-js";
import { InferenceService } from "../src/contract/inference.js";
import { ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { StatusSchema } from "../src/gen/google/rpc/status_pb.js";
import {
  Health,
  type HealthCheckRequest,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus as Serving,
} from "../src/gen/grpc_health/v1/health_pb.js";
import { serviceDefinition } from "../src/serving.js";

export interface ScriptedServer {
  readonly address: string;
  /** Calls that came, by the name of the method. */
  readonly calls: string[];
  setServing(isServing: boolean): void;
  stop(): void;
}

type Handlers = Partial<Record<keyof typeof InferenceService.method, grpc.UntypedHandleCall>>;

/** Serves the methods given on a free port of loopback, or the one given; health too unless `hasHealth` is false. */
export async function serve(
  handlers: Handlers,
  {
    credentials = grpc.ServerCredentials.createInsecure(),
    hasHealth = true,
    address = "127.0.0.1:0",
  }: { credentials?: grpc.ServerCredentials; hasHealth?: boolean; address?: string } = {},
): Promise<ScriptedServer> {
  const calls: string[] = [];
  const server = new grpc.Server();
  const counted = Object.fromEntries(
    Object.entries(handlers).map(([name, handle]) => {
      const counting: grpc.handleUnaryCall<unknown, unknown> = (call, answer) => {
        calls.push(name);
        (handle as grpc.handleUnaryCall<unknown, unknown>)(call, answer);
      };
      return [name, counting];
    }),
  );
  server.addService(serviceDefinition(InferenceService), counted);
  const watchers = new Set<grpc.ServerWritableStream<HealthCheckRequest, Partial<HealthCheckResponse>>>();
  let status = Serving.SERVING;
  if (hasHealth) {
    server.addService(serviceDefinition(Health), {
      watch: (call: grpc.ServerWritableStream<HealthCheckRequest, Partial<HealthCheckResponse>>) => {
        watchers.add(call);
        call.on("cancelled", () => watchers.delete(call));
        call.write({ $typeName: "grpc.health.v1.HealthCheckResponse", status });
      },
    });
  }
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync(address, credentials, (error, bound) => (error === null ? resolve(bound) : reject(error)));
  });
  return {
    address: `127.0.0.1:${port}`,
    calls,
    setServing: (isServing) => {
      status = isServing ? Serving.SERVING : Serving.NOT_SERVING;
      for (const watcher of watchers) {
        watcher.write({ $typeName: "grpc.health.v1.HealthCheckResponse", status });
      }
    },
    stop: () => server.forceShutdown(),
  };
}

/** An error as the services send it. */
export function refusal(code: grpc.status, reason = "", domain = "executor.metronome"): Partial<grpc.StatusObject> {
  const details = reason === "" ? [] : [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason, domain }))];
  const metadata = new grpc.Metadata();
  metadata.set("grpc-status-details-bin", Buffer.from(toBinary(StatusSchema, create(StatusSchema, { code, details }))));
  return { code, details: reason || "refused", metadata };
}
