// Products by AVX-512: eight rows by 32 columns at once.

#pragma once

#include "processor.h"

#ifdef METRONOME_IS_AVX512

#include "row_numbers.h"

namespace {

#ifdef METRONOME_MULTIPLIES_PAIRS

// A pair of numbers of each of 16 columns.
struct Columns {
    __m512bh pairs;

    Columns() = default;
    explicit Columns(const Word* words) : pairs((__m512bh)_mm512_load_si512(words)) {}
    // With their products by a pair of a row.
    __m512 add_to(__m512 sums, const RowNumber* row) const {
        Word pair;
        std::memcpy(&pair, row, sizeof(pair));
        return _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32(static_cast<int>(pair)), pairs);
    }
};

#else

struct Columns {
    __m512 even, odd;

    Columns() = default;
    explicit Columns(const Word* words) {
        const __m512i pairs = _mm512_load_si512(words);
        even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
    }
    __m512 add_to(__m512 sums, const RowNumber* row) const {
        return _mm512_fmadd_ps(_mm512_set1_ps(row[1]), odd, _mm512_fmadd_ps(_mm512_set1_ps(row[0]), even, sums));
    }
};

#endif

// Sixteen sums at once, as many as it takes to keep both units of the processor busy while each sum waits for itself:
// eight rows by 32 columns, or sixteen rows by 16. Fewer rows where there are fewer.
template <bool kBothColumns>
constexpr int64_t kVectorRows = kBothColumns ? 8 : 16;
constexpr int64_t kMostRows = kVectorRows<true>;  // at once
constexpr int64_t kPrefetchWords = 1024;          // ahead in a panel; the next panel follows in memory

template <bool kBothColumns, int64_t kRows, bool kFetches>
void multiply_vectors(const RowNumber* rows, const Word* panel, const char* ahead, int64_t num_lines, int64_t dim,
                      float (*sums)[kPanel]) {
    __m512 low[kRows], high[kBothColumns ? kRows : 1];
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
        low[r] = _mm512_setzero_ps();
        if constexpr (kBothColumns) high[r] = _mm512_setzero_ps();
    }
    for (int64_t step = 0; step < dim; step += kStep, panel += 2 * kTile * kTile) {
#pragma GCC unroll 2
        for (int64_t k = 0; k < kStep / 2; ++k) {
            // A few at a time: lines on their way from memory are few, and those of the panel itself are among them.
            if constexpr (kFetches)
                for (int64_t line = k * num_lines / (kStep / 2); line < (k + 1) * num_lines / (kStep / 2); ++line)
                    prefetch(ahead + (step / kStep * num_lines + line) * 64);
            const Columns first(panel + k * kTile);
            [[maybe_unused]] Columns second;
            if constexpr (kBothColumns) second = Columns(panel + kTile * kTile + k * kTile);
#pragma GCC unroll 16
            for (int64_t r = 0; r < kRows; ++r) {
                const RowNumber* row = rows + r * dim + step + 2 * k;
                low[r] = first.add_to(low[r], row);
                if constexpr (kBothColumns) high[r] = second.add_to(high[r], row);
            }
        }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
        _mm512_store_ps(sums[r], low[r]);
        if constexpr (kBothColumns) _mm512_store_ps(sums[r] + kTile, high[r]);
    }
}

// The first `num_rows` rows, or kVectorRows if there are more.
template <bool kBothColumns, int64_t kRows = kVectorRows<kBothColumns>>
void multiply_some(const RowNumber* rows, int64_t num_rows, const Word* panel, const char* ahead, int64_t num_lines,
                   int64_t dim, float (*sums)[kPanel]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows)
            return multiply_some<kBothColumns, kRows - 1>(rows, num_rows, panel, ahead, num_lines, dim, sums);
    num_lines == 0 ? multiply_vectors<kBothColumns, kRows, false>(rows, panel, ahead, num_lines, dim, sums)
                   : multiply_vectors<kBothColumns, kRows, true>(rows, panel, ahead, num_lines, dim, sums);
}

#ifndef METRONOME_MULTIPLIES_PAIRS

constexpr int64_t kSlab = 128;  // numbers along K of a slab: with a step's rows it stays in the first-level cache

// Up to eight rows by a slab [size][32] of columns that are widened. What it sums is added where the slab is not the first.
template <int64_t kRows = 8>
void multiply_slab(const RowNumber* rows, int64_t num_rows, const float* slab, int64_t size, int64_t dim, bool is_first,
                   float (*sums)[kPanel]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows) return multiply_slab<kRows - 1>(rows, num_rows, slab, size, dim, is_first, sums);
    __m512 low[kRows], high[kRows];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
        low[r] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(sums[r]);
        high[r] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(sums[r] + kTile);
    }
#pragma GCC unroll 4
    for (int64_t k = 0; k < size; ++k) {
        const __m512 first = _mm512_load_ps(slab + k * kPanel), second = _mm512_load_ps(slab + k * kPanel + kTile);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            const __m512 row = _mm512_set1_ps(rows[r * dim + k]);
            low[r] = _mm512_fmadd_ps(row, first, low[r]);
            high[r] = _mm512_fmadd_ps(row, second, high[r]);
        }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
        _mm512_store_ps(sums[r], low[r]);
        _mm512_store_ps(sums[r] + kTile, high[r]);
    }
}

// Both halves of a panel's numbers [start, start + size) along K, as floats.
inline void widen(const Word* panel, int64_t start, int64_t size, float* slab) {
    for (int64_t k = start; k < start + size; k += 2, slab += 2 * kPanel) {
        const Word* words = panel + k / kStep * 2 * kTile * kTile + k % kStep / 2 * kTile;
        const Columns first(words), second(words + kTile * kTile);
        _mm512_store_ps(slab, first.even);
        _mm512_store_ps(slab + kTile, second.even);
        _mm512_store_ps(slab + kPanel, first.odd);
        _mm512_store_ps(slab + kPanel + kTile, second.odd);
    }
}

// Many rows by a panel that is in the cache: it is widened once for all of them, and not once for each eight.
inline void multiply_slabs(const RowNumber* low, const RowNumber* high, int64_t num_rows, const Word* panel, int64_t dim,
                           Sums* sums) {
    alignas(64) float slab[kSlab * kPanel];
    for (int64_t start = 0; start < dim; start += kSlab) {
        const int64_t size = std::min(kSlab, dim - start);
        widen(panel, start, size, slab);
        for (int64_t r = 0; r < num_rows; r += 8)
            multiply_slab((r < kTile ? low + r * dim : high + (r - kTile) * dim) + start, num_rows - r, slab, size, dim,
                          start == 0, sums->of + r);
    }
}

#endif

template <bool kBothColumns>
void multiply_all(const RowNumber* low, const RowNumber* high, int64_t num_rows, const Word* panel, Ahead ahead, int64_t dim,
                  Sums* sums) {
#ifndef METRONOME_MULTIPLIES_PAIRS
    if (kBothColumns && num_rows > kTile && ahead.from == nullptr)
        return multiply_slabs(low, high, num_rows, panel, dim, sums);
#endif
    constexpr int64_t kRows = kVectorRows<kBothColumns>;
    const int64_t num_times = ahead.is_soon ? 1 : (num_rows + kRows - 1) / kRows;
    const int64_t share = kStep / num_times;
    const char* from = static_cast<const char*>(ahead.from);
    for (int64_t r = 0; r < num_rows; r += kRows) {
        const int64_t num_lines = ahead.from == nullptr || r / kRows >= num_times ? 0 : share;
        multiply_some<kBothColumns>(r < kTile ? low + r * dim : high + (r - kTile) * dim, num_rows - r, panel, from,
                                    num_lines, dim, sums->of + r);
        from += num_lines * dim * 2;
    }
}

}  // namespace

#endif
