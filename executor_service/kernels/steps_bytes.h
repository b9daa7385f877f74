// A step of a product in 8 bits, some rows by a panel of 32 columns, with exact sums in 32 bits: numbers of rows have a sign,
// those of columns an offset instead, since that is what processors multiply.
//
//     rows [K]                     panel: groups [16][4] of four numbers that follow each other along K, of each half's 16
//     in memory order              columns; in which order the groups lie, the processor says

#pragma once

#include "processor.h"

#ifdef METRONOME_MULTIPLIES_BYTES

#include "eight_bits.h"

namespace {

constexpr int64_t kGroup = 4;  // numbers along K
constexpr int32_t kOffset = 128;

// A row beside its numbers in 8 bits: its bounds, and what its products are too large by, since columns have an offset.
struct Token {
    float step, lost, norm;
    int32_t offset;
};

}  // namespace

#include "steps_bytes_short_vectors.h"
#include "steps_bytes_vectors.h"

#endif
