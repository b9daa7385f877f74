// Rows as products take them.
//
// AMD's processors multiply pairs of bfloat16 at the pace of single floats (AVX512_BF16), Intel's at a quarter of it, and older
// ones not at all: there each number is widened to a float, and multiplied as one, which takes 0.6 of the quarter's time.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "numbers.h"
#include "panels.h"

// Beside tiles pairs too: their rows are not widened. Compilers that do not know a processor of AMD take it for an older one.
#if defined(METRONOME_IS_AVX512) && defined(__AVX512BF16__) && !defined(METRONOME_MULTIPLIES_FLOATS) && \
    (defined(__AMX_BF16__) || defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
#define METRONOME_MULTIPLIES_PAIRS
#endif

namespace {

#ifdef METRONOME_MULTIPLIES_PAIRS

using RowNumber = uint16_t;

inline void to_row(const uint16_t* numbers, RowNumber* row, int64_t count) { std::copy_n(numbers, count, row); }
inline void to_row(const float* numbers, RowNumber* row, int64_t count) {
    for (int64_t i = 0; i < count; ++i) store(reinterpret_cast<bfloat16*>(row) + i, numbers[i]);
}

#else

using RowNumber = float;

inline void to_row(const uint16_t* numbers, RowNumber* row, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const Word bits = static_cast<Word>(numbers[i]) << 16;
        std::memcpy(row + i, &bits, sizeof(bits));
    }
}
inline void to_row(const float* numbers, RowNumber* row, int64_t count) { std::copy_n(numbers, count, row); }

#endif

}  // namespace

#endif
