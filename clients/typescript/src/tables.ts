/** Tables of requests from plain lists of numbers. */

import { create, ScalarType } from "@bufbuild/protobuf";
import { type RequestTable, RequestTableSchema } from "./gen/metronome/scheduler/v1/state_pb.js";

type Column = Exclude<keyof RequestTable, "$typeName" | "$unknown">;

/** The columns of a request table, each a list or typed array; those that are left out mean 0 in every row. */
export type Columns = { readonly [C in Column]?: ArrayLike<number | bigint> };

const BITS_64: ReadonlySet<ScalarType> = new Set([ScalarType.SFIXED64]);

/**
 * Writes a table from columns of numbers, bigints or both: the contract has bigints where a field has 64 bits.
 *
 * Throws RangeError where one of those is no whole number, and TypeError for a column that the table does not have.
 */
export function requestTable(columns: Columns): RequestTable {
  const written = Object.entries(columns).map(([name, values]) => {
    const field = RequestTableSchema.field[name as Column];
    if (field === undefined) {
      throw new TypeError(`a request table has no column ${name}`);
    }
    const is64 = field.fieldKind === "list" && field.listKind === "scalar" && BITS_64.has(field.scalar);
    return [name, Array.from(values, (value) => (is64 ? BigInt(value) : Number(value)))];
  });
  return create(RequestTableSchema, Object.fromEntries(written));
}
