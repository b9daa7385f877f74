/** What stands between a client and a real service in some tests: it encrypts, or cuts the line. */

import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { createServer as createTlsServer, type TlsOptions } from "node:tls";

export interface Proxy {
  readonly address: string;
  readonly port: number;
  /** Cuts every connection; new ones are taken. */
  cut(): void;
  stop(): void;
}

/** Passes bytes to the service at `target`; to nobody, so that it never answers, where that is undefined. */
export function proxy(target: string | undefined): Promise<Proxy> {
  return listening((forward) => createServer(forward), target);
}

/** Ends TLS and passes on what was in it. */
export function tlsProxy(target: string, options: TlsOptions): Promise<Proxy> {
  return listening((forward) => createTlsServer({ ...options, ALPNProtocols: ["h2"] }, forward), target);
}

async function listening(
  create: (forward: (socket: Socket) => void) => Server,
  target: string | undefined,
): Promise<Proxy> {
  const sockets = new Set<Socket>();
  const server = create((socket) => {
    const far = target === undefined ? undefined : connect(Number(target.split(":")[1]), "127.0.0.1");
    for (const end of [socket, far]) {
      if (end !== undefined) {
        sockets.add(end);
        end.on("close", () => sockets.delete(end));
        end.on("error", () => undefined);
      }
    }
    if (far !== undefined) {
      socket.pipe(far).pipe(socket);
      socket.on("close", () => far.destroy());
      far.on("close", () => socket.destroy());
    }
  });
  server.on("tlsClientError", () => undefined);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const cut = () => {
    for (const socket of sockets) {
      socket.destroy();
    }
  };
  return {
    address: `127.0.0.1:${port}`,
    port,
    cut,
    stop: () => {
      cut();
      server.close();
    },
  };
}
