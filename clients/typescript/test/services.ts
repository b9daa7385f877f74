/** The real services that the tests talk to. `tests/contract/test_typescript.py` starts them and names them here. */

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { InferenceClient, UnavailableError } from "../src/index.js";

export const EXECUTOR = setting("METRONOME_TEST_EXECUTOR");
export const SCHEDULER = setting("METRONOME_TEST_SCHEDULER");

/**
 * A scheduler that asks for a certificate, and shows one for `localhost` and 127.0.0.1. It knows that of `client`, and
 * the token "right".
 */
export const TLS_SCHEDULER = setting("METRONOME_TEST_TLS_SCHEDULER");

/** A directory with `ca.pem`, and what it signed: `localhost`, `elsewhere` (for another name) and `client`, .pem and .key. */
export const CERTIFICATES = setting("METRONOME_TEST_CERTIFICATES");

/** Nobody listens there. */
export const NOBODY = "127.0.0.1:1";

/** A bound for a hang. */
export const HANG_MS = 60_000;

/** An executor process of a test's own, to be drained or killed. */
export interface ExecutorProcess {
  readonly address: string;
  readonly process: ChildProcess;
  /** Ends it as a crash would. */
  kill(): Promise<void>;
}

/** Starts an executor with the tiny model, and waits until it serves. */
export async function startExecutor(...flags: readonly string[]): Promise<ExecutorProcess> {
  const directory = mkdtempSync(join(tmpdir(), "metronome-"));
  const addressFile = join(directory, "address");
  const command = ["-m", "executor_service", "--model", setting("METRONOME_TEST_MODEL"), "--dtype", "float32"];
  command.push("--threads", "1", "--port", "0", "--scheduler", SCHEDULER, "--address-file", addressFile, ...flags);
  const process = spawn(setting("METRONOME_TEST_PYTHON"), command, { stdio: ["ignore", "ignore", "ignore"] });
  const ended = new Promise<void>((resolve) => process.once("exit", () => resolve()));
  await until(() => {
    if (process.exitCode !== null) {
      throw new Error(`the executor ended with status ${process.exitCode}`);
    }
    return existsSync(addressFile);
  });
  const address = readFileSync(addressFile, "utf-8").trim();
  rmSync(directory, { recursive: true });
  const client = new InferenceClient(address, { retry: { maxAttempts: 1 } });
  try {
    await until(() => client.modelInfo().then(() => true, isUnavailable));
  } finally {
    client.close();
  }
  return {
    address,
    process,
    kill: () => {
      process.kill("SIGKILL");
      return ended;
    },
  };
}

/** Polls until it holds. The time is a bound for a hang, not a measure. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = Date.now() + HANG_MS;
  while (!(await condition())) {
    if (Date.now() > endMs) {
      throw new Error("waited in vain");
    }
    await sleep(20);
  }
}

/** Whether nobody is in an executor, nor holds a block. */
export async function isIdle(executor: InferenceClient): Promise<boolean> {
  const { state } = await executor.state();
  const [books] = state?.executors ?? [];
  return books?.requests?.id.length === 0 && books.numFreeBlocks === books.limits?.numBlocks;
}

export async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const item of items) {
    all.push(item);
  }
  return all;
}

export function pem(name: string): Buffer {
  return readFileSync(join(CERTIFICATES, name));
}

function isUnavailable(error: unknown): false {
  if (!(error instanceof UnavailableError)) {
    throw error;
  }
  return false;
}

function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined) {
    throw new Error(`${name} is not set: run these tests by \`npm test\``);
  }
  return value;
}
