/** States from plain lists of numbers, and plans as plain values. */

import { create, ScalarType } from "@bufbuild/protobuf";
import { EvictMode, type ExecutorPlan, Reason } from "./gen/metronome/scheduler/v1/plan_pb.js";
import { RequestStatus, type RequestTable, RequestTableSchema } from "./gen/metronome/scheduler/v1/state_pb.js";

type Column = Exclude<keyof RequestTable, "$typeName" | "$unknown" | "status">;

/** The names of `RequestStatus`. */
export type StatusName = Exclude<keyof typeof RequestStatus, "UNSPECIFIED">;

/** The columns of a request table, each a list or typed array; those that are left out mean 0 in every row. */
export type Columns = { readonly [C in Column]?: ArrayLike<number | bigint> } & {
  readonly status?: ArrayLike<RequestStatus | StatusName>;
};

/**
 * Writes a table from columns of numbers, bigints or both: the contract has bigints where a field has 64 bits.
 *
 * Throws RangeError where one of those is no whole number, and TypeError for a column that the table does not have.
 */
export function requestTable({ status = [], ...columns }: Columns): RequestTable {
  const written = Object.entries(columns).map(([name, values]) => {
    const field = RequestTableSchema.field[name as Column];
    if (field === undefined) {
      throw new TypeError(`a request table has no column ${name}`);
    }
    const is64 = field.fieldKind === "list" && field.listKind === "scalar" && field.scalar === ScalarType.SFIXED64;
    return [name, Array.from(values, (value) => (is64 ? BigInt(value) : Number(value)))];
  });
  const statuses = Array.from(status, (one) => (typeof one === "string" ? RequestStatus[one] : one));
  return create(RequestTableSchema, { ...Object.fromEntries(written), status: statuses });
}

/**
 * A plan for one pass of one executor, by request id.
 *
 * `scheduled`: tokens to run; `evict`: "SWAP" or "RECOMPUTE"; `reject` and `reasons`: names of the contract's `Reason`; a value
 * that this client does not know is its number.
 */
export interface Decision {
  readonly executorId: string;
  readonly iteration: bigint;
  readonly scheduled: ReadonlyMap<bigint, number>;
  readonly admit: readonly bigint[];
  readonly resume: readonly bigint[];
  readonly evict: ReadonlyMap<bigint, string>;
  readonly reject: ReadonlyMap<bigint, string>;
  readonly reasons: ReadonlyMap<bigint, string>;
}

/** Reads a plan. `reasons` has one for every request where the plan was asked for with `explain`. */
export function decision(plan: ExecutorPlan): Decision {
  const { scheduled, admit, resume, evict, reject, explanations } = plan;
  const tables = [scheduled, evict, reject, admit, resume, explanations];
  const named = (reason: Reason) => Reason[reason] ?? String(reason);
  return {
    executorId: plan.executorId,
    iteration: plan.iteration,
    scheduled: new Map(scheduled?.id.map((id, i) => [id, scheduled.numTokens[i] ?? 0])),
    admit: admit?.id ?? [],
    resume: resume?.id ?? [],
    evict: new Map(evict?.id.map((id, i) => [id, EvictMode[evict.mode[i] ?? 0] ?? String(evict.mode[i])])),
    reject: new Map(reject?.id.map((id, i) => [id, named(reject.reason[i] ?? Reason.UNSPECIFIED)])),
    reasons: new Map(
      tables.flatMap((table) =>
        (table?.reason ?? []).map((reason, i): [bigint, string] => [table?.id[i] ?? 0n, named(reason)]),
      ),
    ),
  };
}
