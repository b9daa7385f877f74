// Products of bytes by AVX2: eight rows by eight columns at once, which leaves registers for what is multiplied. An
// instruction sums products of two bytes in 16 bits, and saturates; two of those are added before they are widened, so of
// three multiplications two are of bytes. AVX-VNNI has an instruction that sums in 32 bits.

#pragma once

#include "processor.h"

#if defined(METRONOME_MULTIPLIES_BYTES) && !defined(METRONOME_IS_AVX512)

#include "steps_bytes.h"

namespace {

constexpr int64_t kRowsAtOnce = 8;
constexpr int64_t kGroupsAtOnce = 2;
constexpr int64_t kColumnsAtOnce = 8;

// All groups of eight columns, then those of the next: each is read in one stream.
constexpr int64_t kBytesToNextGroup = kColumnsAtOnce * kGroup;
constexpr int64_t bytes_to_second_half(int64_t dim) { return kTile * dim; }
inline void store_group(uint8_t* target, SixteenInts group, int64_t dim) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(target), group.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(target + kColumnsAtOnce * dim), group.high);
}

#ifdef __AVXVNNI__

using TokenSize = AsLargeAsTheyAre;

// With products by the same numbers of two groups.
inline __m256i add_products(__m256i sums, __m256i columns, __m256i row, __m256i next_columns, __m256i next_row) {
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sums, columns, row), next_columns, next_row);
}

#else

// Sums of 16 bits are of two numbers of each group, by columns of up to 255. So four numbers of a row that are summed, those
// above zero alone or those below, may be 128 steps in all, and rounding adds half a step to each. (Gemma's, over text: the
// largest number of a row becomes 80 steps on average, and not 127.)
struct TokenSize {
    static constexpr float kMostSummed = 32767 / 255 - kGroupsAtOnce;

    static Sixteen largest(const Sixteen* columns, int64_t dim, Sixteen largest) {
        constexpr int64_t kPair = 2;
        for (int64_t k = 0; k < dim; k += kGroupsAtOnce * kGroup)
            for (int64_t pair = k; pair < k + kGroup; pair += kPair) {
                Sixteen above = all(0.0f), below = all(0.0f);
                for (int64_t group = pair; group < pair + kGroupsAtOnce * kGroup; group += kGroup)
                    for (int64_t i = group; i < group + kPair; ++i) {
                        above = above + larger(columns[i], all(0.0f));
                        below = below + larger(all(0.0f) - columns[i], all(0.0f));
                    }
                largest = larger(largest, larger(above, below) * all(kMostSteps / kMostSummed));
            }
        return largest;
    }
};

inline __m256i add_products(__m256i sums, __m256i columns, __m256i row, __m256i next_columns, __m256i next_row) {
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(columns, row), _mm256_maddubs_epi16(next_columns, next_row));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#endif

inline __m256i group_of(const int8_t* row) {
    int32_t numbers;
    std::memcpy(&numbers, row, sizeof(numbers));
    return _mm256_set1_epi32(numbers);
}

// Up to eight rows by 32 columns, `num_lines` of what comes later fetched on the way.
template <int64_t kRows = kRowsAtOnce>
void multiply_bytes(const int8_t* rows, const Token* tokens, int64_t num_rows, const uint8_t* panel, const char* ahead,
                    int64_t num_lines, int64_t dim, SixteenInts (*sums)[2]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows) return multiply_bytes<kRows - 1>(rows, tokens, num_rows, panel, ahead, num_lines, dim, sums);
    constexpr int64_t kNumbers = kGroupsAtOnce * kGroup;
    const int64_t num_times = dim / kNumbers * (kPanel / kColumnsAtOnce);
    for (int64_t column = 0, due = 0; column < kPanel; column += kColumnsAtOnce) {
        __m256i those[kRows];
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) those[r] = _mm256_set1_epi32(-tokens[r].offset);
        for (int64_t k = 0; k < dim; k += kNumbers, panel += kNumbers * kColumnsAtOnce) {
            // A few at a time, as in steps_short_vectors.h.
            for (due += num_lines; due >= num_times; due -= num_times, ahead += 64) prefetch(ahead);
            const __m256i columns = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel));
            const __m256i next_columns = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + kBytesToNextGroup));
#pragma GCC unroll 8
            for (int64_t r = 0; r < kRows; ++r) {
                const int8_t* row = rows + r * dim + k;
                those[r] = add_products(those[r], columns, group_of(row), next_columns, group_of(row + kGroup));
            }
        }
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            SixteenInts& target = sums[r][column / kTile];
            (column % kTile == 0 ? target.low : target.high) = those[r];
        }
    }
}

}  // namespace

#endif
