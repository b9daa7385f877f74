// Products by AVX2: up to six rows by 16 columns at once. Sixteen registers of eight floats hold their sums, the numbers of a
// row of columns, and one number of a row.
//
// A panel is taken in slabs along K. Each is widened to floats once for all rows, a single one too: that reads it in one stream,
// and memory follows. Each sum adds one number after the other, whoever else is multiplied.

#pragma once

#include "processor.h"

#if defined(METRONOME_HAS_PRODUCTS) && !defined(METRONOME_IS_AVX512)

#include <type_traits>

#include "row_numbers.h"
#include "sixteen.h"

namespace {

// A pair of numbers of each of 16 columns.
struct Columns {
    Sixteen even, odd;

    explicit Columns(const Word* words) : even(first_of(sixteen_pairs(words))), odd(second_of(sixteen_pairs(words))) {}
    // With their products by a pair of a row, summed as `multiply_slab` sums them.
    Sixteen add_to(Sixteen sums, const RowNumber* row) const {
        return sum_of_product(all(row[1]), odd, sum_of_product(all(row[0]), even, sums));
    }
};

constexpr int64_t kMostRows = 6;  // at once
constexpr int64_t kSlab = 64;  // numbers along K: widened, with those of the rows, they stay in the first-level cache
constexpr int64_t kPrefetchWords = 2048;  // ahead in a panel, two slabs: one is read as a whole before it is multiplied

using RowSums = float (*)[kPanel];

// What to bring into the cache in the course of a loop: a few lines at a time, since those on their way from memory are few.
struct Fetched {
    const char* from = nullptr;
    int64_t num_lines = 0;

    Fetched part(int64_t index, int64_t num_parts) const {
        const int64_t line = index * num_lines / num_parts;
        return {from + line * 64, (index + 1) * num_lines / num_parts - line};
    }
};

// Numbers [k, k + size) along K of all columns of a panel, as floats [size][32]; k and size are multiples of 32.
inline void widen(const Word* panel, int64_t k, int64_t size, float* slab) {
    const Word* half = panel + k * kTile;
    for (int64_t step = 0; step < size; step += kStep)
        for (int64_t column = 0; column < kPanel; column += kTile, half += kTile * kTile)
            for (int64_t pair = 0; pair < kTile; ++pair) {
                float* target = slab + (step + 2 * pair) * kPanel + column;
                const Columns numbers(half + pair * kTile);
                store(target, numbers.even);
                store(target + kPanel, numbers.odd);
            }
}

// Rows, `dim` numbers apart, by 16 columns of a slab. What it sums is added where the slab is not the first.
template <int64_t kRows>
void multiply_slab(const float* rows, int64_t dim, const float* slab, int64_t size, bool is_first, Fetched fetched,
                   RowSums sums) {
    __m256 low[kRows], high[kRows];
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
        low[r] = is_first ? _mm256_setzero_ps() : _mm256_load_ps(sums[r]);
        high[r] = is_first ? _mm256_setzero_ps() : _mm256_load_ps(sums[r] + kLanes);
    }
    for (int64_t k = 0, due = 0; k < size; k += 4) {
        // Without a division, which would take as long as the products between two of them.
        for (due += 4 * fetched.num_lines; due >= size; due -= size, fetched.from += 64) prefetch(fetched.from);
#pragma GCC unroll 4
        for (int64_t i = k; i < k + 4; ++i, slab += kPanel) {
            const __m256 first = _mm256_load_ps(slab), second = _mm256_load_ps(slab + kLanes);
#pragma GCC unroll 6
            for (int64_t r = 0; r < kRows; ++r) {
                const __m256 row = _mm256_broadcast_ss(rows + r * dim + i);
                low[r] = _mm256_fmadd_ps(row, first, low[r]);
                high[r] = _mm256_fmadd_ps(row, second, high[r]);
            }
        }
    }
#pragma GCC unroll 6
    for (int64_t r = 0; r < kRows; ++r) {
        _mm256_store_ps(sums[r], low[r]);
        _mm256_store_ps(sums[r] + kLanes, high[r]);
    }
}

// The first `num_rows` rows, at most six.
template <int64_t kRows = kMostRows>
void multiply_some(const float* rows, int64_t num_rows, int64_t dim, const float* slab, int64_t size, bool is_first,
                   Fetched fetched, RowSums sums) {
    if constexpr (kRows > 1)
        if (num_rows < kRows) return multiply_some<kRows - 1>(rows, num_rows, dim, slab, size, is_first, fetched, sums);
    multiply_slab<kRows>(rows, dim, slab, size, is_first, fetched, sums);
}

// Rows lie one after the other here: where those at `low` end others begin.
template <bool kBothColumns>
void multiply_all(const RowNumber* low, const RowNumber*, int64_t num_rows, const Word* panel, Ahead ahead, int64_t dim,
                  Sums* sums) {
    constexpr int64_t kHalves = kBothColumns ? 2 : 1;
    const int64_t num_groups = (num_rows + kMostRows - 1) / kMostRows;
    alignas(64) float slab[kSlab * kPanel];
    for (int64_t start = 0; start < dim; start += kSlab) {
        const int64_t size = std::min(kSlab, dim - start);
        // All rows fetch their share, of what is soon multiplied too: who comes first does not read the panel here.
        Fetched fetched;
        if (ahead.from != nullptr) fetched = {static_cast<const char*>(ahead.from) + start * 64, size};
        widen(panel, start, size, slab);
        for (int64_t group = 0; group < num_groups; ++group) {
            const int64_t first = group * num_rows / num_groups, stop = (group + 1) * num_rows / num_groups;
            for (int64_t half = 0; half < kHalves; ++half)
                multiply_some(low + first * dim + start, stop - first, dim, slab + half * kTile, size, start == 0,
                              fetched.part(group * kHalves + half, num_groups * kHalves),
                              reinterpret_cast<RowSums>(&sums->of[first][half * kTile]));
        }
    }
}

}  // namespace

#endif
