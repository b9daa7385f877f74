/** How a client connects: the settings of its channels, and who it says that it is. */

import { type ChannelCredentials, type ChannelOptions, Client, credentials, Metadata, status } from "@grpc/grpc-js";

/** What the services accept; a table of 10,000 requests takes 0.8 MB. */
export const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

/** Whom to trust and who we are, each as PEM. */
export interface TlsOptions {
  /** Certificates of those who may vouch for a server. Default: those that Node trusts. */
  readonly rootCertificates?: string | Uint8Array;
  /** Our own certificate with its chain, and its key, where the server asks for one. */
  readonly certificate?: string | Uint8Array;
  readonly privateKey?: string | Uint8Array;
  /** The name that the server's certificate must have. Default: the host of its address. */
  readonly serverName?: string;
}

/** A token, or what gives one for each call. */
export type Token = string | (() => string | Promise<string>);

export interface ChannelSettings {
  /** Encrypts the connection; `true` with the certificates that Node trusts. Default: no TLS. */
  readonly tls?: TlsOptions | boolean;
  /** Sent with each call as `authorization: Bearer`. Needs TLS. */
  readonly token?: Token;
  /** Largest message that is sent or taken, in bytes. Default: 64 MiB. */
  readonly maxMessageBytes?: number;
}

/** Opens a channel to one address. Nothing is sent before the first call. Throws TypeError for a token without TLS. */
export function openChannel(address: string, settings: ChannelSettings): Client {
  return new Client(address, credentialsOf(settings), channelOptions(settings));
}

function channelOptions({ tls, maxMessageBytes = MAX_MESSAGE_BYTES }: ChannelSettings): ChannelOptions {
  const serverName = typeof tls === "object" ? tls.serverName : undefined;
  return {
    "grpc.max_send_message_length": maxMessageBytes,
    "grpc.max_receive_message_length": maxMessageBytes,
    // A server that is gone without a word is noticed, also while a request waits in a silent queue.
    "grpc.keepalive_time_ms": 10_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.initial_reconnect_backoff_ms": 200,
    "grpc.max_reconnect_backoff_ms": 5_000,
    // For a name with several addresses behind it, and the client decides what is tried again.
    "grpc.service_config": JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    "grpc.service_config_disable_resolution": 1,
    // Clients share no connection, so closing one touches no other.
    "grpc.use_local_subchannel_pool": 1,
    ...(serverName === undefined
      ? {}
      : { "grpc.ssl_target_name_override": serverName, "grpc.default_authority": serverName }),
  };
}

function credentialsOf({ tls, token }: ChannelSettings): ChannelCredentials {
  if (tls === undefined || tls === false) {
    if (token !== undefined) {
      throw new TypeError("a token is sent over TLS alone: set `tls`");
    }
    return credentials.createInsecure();
  }
  const { rootCertificates, privateKey, certificate } = tls === true ? {} : tls;
  const channel = credentials.createSsl(buffer(rootCertificates), buffer(privateKey), buffer(certificate));
  return token === undefined ? channel : credentials.combineChannelCredentials(channel, bearer(token));
}

function bearer(token: Token) {
  return credentials.createFromMetadataGenerator((_, done) => {
    tokenOf(token).then(
      (value) => {
        const metadata = new Metadata();
        metadata.set("authorization", `Bearer ${value}`);
        done(null, metadata);
      },
      (error: unknown) => done(Object.assign(new Error(`no token: ${error}`), { code: status.UNAUTHENTICATED })),
    );
  });
}

async function tokenOf(token: Token): Promise<string> {
  return typeof token === "string" ? token : token();
}

function buffer(pem: string | Uint8Array | undefined): Buffer | null {
  return pem === undefined ? null : Buffer.from(pem);
}
