// Products of bytes by AVX512_VNNI: eight rows by 32 columns at once.

#pragma once

#include "processor.h"

#if defined(METRONOME_MULTIPLIES_BYTES) && defined(METRONOME_IS_AVX512)

#include "steps_bytes.h"

namespace {

constexpr int64_t kRowsAtOnce = 8;

// Groups of both halves take turns.
constexpr int64_t kBytesToNextGroup = kPanel * kGroup;
constexpr int64_t bytes_to_second_half(int64_t) { return kTile * kGroup; }
inline void store_group(uint8_t* target, SixteenInts group, int64_t) { store(target, group); }

using TokenSize = AsLargeAsTheyAre;

// Up to eight rows by 32 columns, `num_lines` of what comes later fetched on the way.
template <int64_t kRows = kRowsAtOnce>
void multiply_bytes(const int8_t* rows, const Token* tokens, int64_t num_rows, const uint8_t* panel, const char* ahead,
                    int64_t num_lines, int64_t dim, SixteenInts (*sums)[2]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows) return multiply_bytes<kRows - 1>(rows, tokens, num_rows, panel, ahead, num_lines, dim, sums);
    __m512i low[kRows], high[kRows];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) low[r] = high[r] = _mm512_set1_epi32(-tokens[r].offset);
    const int64_t num_groups = dim / kGroup;
    for (int64_t group = 0, due = 0; group < num_groups; ++group, panel += kPanel * kGroup) {
        // A few at a time, as in steps_vectors.h.
        for (due += num_lines; due >= num_groups; due -= num_groups, ahead += 64) prefetch(ahead);
        const __m512i first = _mm512_load_si512(panel), second = _mm512_load_si512(panel + kTile * kGroup);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            int32_t numbers;
            std::memcpy(&numbers, rows + r * dim + group * kGroup, sizeof(numbers));
            low[r] = _mm512_dpbusd_epi32(low[r], first, _mm512_set1_epi32(numbers));
            high[r] = _mm512_dpbusd_epi32(high[r], second, _mm512_set1_epi32(numbers));
        }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] = low[r];
        sums[r][1] = high[r];
    }
}

}  // namespace

#endif
