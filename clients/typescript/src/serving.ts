/**
 * A service of the contract as `@grpc/grpc-js` wants it, for servers.
 *
 *     server.addService(serviceDefinition(SchedulerService), { plan, verify, place, listProfiles, planStream });
 */

import { type DescMessage, type DescService, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import type { MethodDefinition, ServiceDefinition } from "@grpc/grpc-js";

/** The methods of a service by their names in camel case; requests and responses are messages of `@bufbuild/protobuf`. */
export function serviceDefinition(service: DescService): ServiceDefinition {
  return Object.fromEntries(
    service.methods.map((method) => [
      method.localName,
      {
        path: `/${service.typeName}/${method.name}`,
        requestStream: method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming",
        responseStream: method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming",
        ...codec("request", method.input),
        ...codec("response", method.output),
      } as MethodDefinition<unknown, unknown>,
    ]),
  );
}

function codec<D extends DescMessage>(side: "request" | "response", schema: D) {
  return {
    [`${side}Serialize`]: (message: MessageShape<D>) => Buffer.from(toBinary(schema, message)),
    [`${side}Deserialize`]: (bytes: Buffer) => fromBinary(schema, bytes),
  };
}
