// A step of a product in bfloat16, 32 rows by a panel of 32 columns, with sums in float32: what linear layers, the output
// head and the attention of chunks are made of. By AMX tiles where the processor and the system grant them, else by AVX-512,
// else by AVX2.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "row_numbers.h"
#include "steps_short_vectors.h"
#include "steps_tiles.h"
#include "steps_vectors.h"

namespace {

#ifndef __AMX_BF16__
bool tiles_are_granted() { return false; }
struct Tiles {};
#endif

// `num_rows` rows, the first 16 at `low` and the others at `high`, by one panel of which the first half may be enough. Sums
// of other rows mean nothing.
void multiply(const RowNumber* low, const RowNumber* high, int64_t num_rows, const Word* panel, bool both_columns,
              Ahead ahead, int64_t dim, Sums* sums) {
#ifdef __AMX_BF16__
    if (tiles_are_granted()) {
        if (num_rows > kTile)
            both_columns ? multiply_tiles<true, true>(low, high, panel, ahead, dim, sums)
                         : multiply_tiles<true, false>(low, high, panel, ahead, dim, sums);
        else
            both_columns ? multiply_tiles<false, true>(low, high, panel, ahead, dim, sums)
                         : multiply_tiles<false, false>(low, high, panel, ahead, dim, sums);
        return;
    }
#endif
    const auto by_vectors = both_columns ? multiply_all<true> : multiply_all<false>;
    by_vectors(low, high, num_rows, panel, ahead, dim, sums);
}

}  // namespace

#endif
