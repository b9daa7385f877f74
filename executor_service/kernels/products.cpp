// Matrix products in bfloat16: linear layers, and the output head of rows that need no logits but only the largest one.
// Where the processor has no instruction for them the library lacks these functions, and the caller uses oneDNN's.
//
// In a linear layer the rows of a product are tokens and the panels are weights, packed once. In the output head the rows
// are weights, so that the table of embeddings serves as it is, and the panels are tokens: each lane holds one token's
// logits.

#ifdef __AVX512BF16__

#include <limits>
#include <vector>

#include "operations.h"
#include "panels.h"

namespace {

constexpr int64_t kPrefetchWords = 1024;  // ahead in a panel; the next panel follows in memory
// Rows of tokens that stay in the second-level cache while all panels pass by.
constexpr int64_t kRowBytes = 512 * 1024;
// Rows of the output head that a thread takes at once. Other threads of the process may hold it up: then the rest goes on.
constexpr int64_t kHeadRows = 1024;

// rows [count, dim] as panels of 32 columns each, those that fill up the last are zero.
void pack(const uint16_t* rows, Word* panels, int64_t count, int64_t dim) {
    const int64_t num_panels = (count + kPanel - 1) / kPanel;
#pragma omp parallel for if (count * dim > 65536)
    for (int64_t p = 0; p < num_panels; ++p)
        for (int64_t k = 0; k < dim; k += 2)
            for (int64_t column = 0; column < kPanel; ++column) {
                Word pair = 0;
                if (p * kPanel + column < count) std::memcpy(&pair, rows + (p * kPanel + column) * dim + k, sizeof(pair));
                panels[p * kTile * dim + k / kStep * 2 * kTile * kTile + column / kTile * kTile * kTile +
                       k % kStep / 2 * kTile + column % kTile] = pair;
            }
}

// Rows, sixteen at a time. Tiles take no fewer: for them the last ones, filled up with zeros, lie apart.
class Rows {
  public:
    Rows(const uint16_t* rows, int64_t count, int64_t dim) : rows_(rows), count_(count), dim_(dim) {
        const int64_t rest = count % kTile;
        if (rest == 0 || !tiles_are_granted()) return;
        last_ = aligned<uint16_t>(kTile * dim);
        std::memcpy(last_.get(), rows + (count - rest) * dim, rest * dim * 2);
        std::memset(last_.get() + rest * dim, 0, (kTile - rest) * dim * 2);
    }
    int64_t num_tiles() const { return (count_ + kTile - 1) / kTile; }
    const uint16_t* tile(int64_t t) const { return last_ && (t + 1) * kTile > count_ ? last_.get() : rows_ + t * kTile * dim_; }

  private:
    const uint16_t* rows_;
    int64_t count_, dim_;
    std::unique_ptr<uint16_t[], Free> last_;
};

inline __m256i to_bfloat16(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }
inline __m512 rounded(__m512 values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bfloat16(values)), 16));
}

// The largest logit of each of 16 tokens, in bfloat16, and its row; the first of those that are equal.
struct Largest {
    __m512 logit = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512i row = _mm512_setzero_si512();
    __mmask16 is_nan = 0;

    void see(__m512 sums, __m512i in_row) {
        const __m512 value = rounded(sums);
        is_nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        const __mmask16 larger = _mm512_cmp_ps_mask(value, logit, _CMP_GT_OQ);
        logit = _mm512_mask_mov_ps(logit, larger, value);
        row = _mm512_mask_mov_epi32(row, larger, in_row);
    }

    // Of two that are equal, the lower row: threads take rows in any order.
    void merge(const Largest& other) {
        const __mmask16 equal = _mm512_cmp_ps_mask(other.logit, logit, _CMP_EQ_OQ);
        const __mmask16 better = _mm512_cmp_ps_mask(other.logit, logit, _CMP_GT_OQ) |
                                 (equal & _mm512_cmplt_epi32_mask(other.row, row));
        logit = _mm512_mask_mov_ps(logit, better, other.logit);
        row = _mm512_mask_mov_epi32(row, better, other.row);
        is_nan |= other.is_nan;
    }

    // With what the upper eight lanes have seen, of other rows of the same tokens.
    Largest with_upper_lanes() const {
        Largest upper = *this, lower = *this;
        upper.logit = _mm512_shuffle_f32x4(logit, logit, 0b01001110);
        upper.row = _mm512_shuffle_i32x4(row, row, 0b01001110);
        upper.is_nan = static_cast<__mmask16>(is_nan >> 8 | is_nan << 8);
        lower.merge(upper);
        return lower;
    }
};

// Logits of up to eight tokens: lanes that they leave multiply the next row. Each sum is of the same numbers in the same
// order as a panel's, so that a token's logits do not depend on how many there are.
class FewTokens {
  public:
    static constexpr int64_t kTokens = 8;
    static constexpr int64_t kRowsAtOnce = 16;

    FewTokens(const uint16_t* input, int64_t num_tokens, int64_t dim) : dim_(dim), columns_(aligned<Word>(dim / 2 * kTokens)) {
        std::memset(columns_.get(), 0, dim / 2 * kTokens * sizeof(Word));
        for (int64_t token = 0; token < num_tokens; ++token)
            for (int64_t k = 0; k < dim / 2; ++k)
                std::memcpy(columns_.get() + k * kTokens + token, input + token * dim + 2 * k, sizeof(Word));
    }

    // kRowsAtOnce rows of the head, of which the first is number `first`.
    void see(const uint16_t* rows, int64_t first, Largest& largest) const {
        constexpr int64_t kVectors = kRowsAtOnce / 2;
        __m512 sums[kVectors];
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v) sums[v] = _mm512_setzero_ps();
        for (int64_t k = 0; k < dim_ / 2; k += 4) {
            __m512i columns[4];
#pragma GCC unroll 4
            for (int64_t i = 0; i < 4; ++i)
                columns[i] = _mm512_broadcast_i64x4(
                    _mm256_load_si256(reinterpret_cast<const __m256i*>(columns_.get() + (k + i) * kTokens)));
#pragma GCC unroll 8
            for (int64_t v = 0; v < kVectors; ++v) {
                const uint16_t* even = rows + 2 * v * dim_ + 2 * k;
                if (k % kTile == 0) {
                    prefetch(even + kRowsAtOnce * dim_);
                    prefetch(even + (kRowsAtOnce + 1) * dim_);
                }
                // Four pairs of a row, in all lanes of the row.
                const __m512i pairs = _mm512_inserti64x4(_mm512_castsi256_si512(four_pairs(even)), four_pairs(even + dim_), 1);
                add<0>(sums[v], pairs, columns);
                add<1>(sums[v], pairs, columns);
                add<2>(sums[v], pairs, columns);
                add<3>(sums[v], pairs, columns);
            }
        }
        const __m512i row_of_lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
#pragma GCC unroll 8
        for (int64_t v = 0; v < kVectors; ++v)
            largest.see(sums[v], _mm512_add_epi32(row_of_lane, _mm512_set1_epi32(static_cast<int32_t>(first + 2 * v))));
    }

  private:
    static __m256i four_pairs(const uint16_t* numbers) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
    }

    template <int kPair>
    static void add(__m512& sums, __m512i pairs, const __m512i* columns) {
        const __m512i row = _mm512_shuffle_epi32(pairs, static_cast<_MM_PERM_ENUM>(kPair * 0b01010101));
        sums = _mm512_dpbf16_ps(sums, (__m512bh)row, (__m512bh)columns[kPair]);
    }

    const int64_t dim_;
    std::unique_ptr<Word[], Free> columns_;
};

// Rows of the head in turns among the threads; what each has seen is merged. see(first, stop, largest): the rows [first, stop).
template <typename See>
void see_rows(int64_t num_rows, std::vector<Largest>& largest, const See& see) {
    tiles_are_granted();
#pragma omp parallel
    {
        [[maybe_unused]] const Tiles tiles;
        std::vector<Largest> mine(largest.size());
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < num_rows; first += kHeadRows)
            see(first, std::min(num_rows, first + kHeadRows), mine.data());
#pragma omp critical
        for (size_t i = 0; i < largest.size(); ++i) largest[i].merge(mine[i]);
    }
}

Largest largest_of_few(const uint16_t* input, const uint16_t* weight, int64_t num_tokens, int64_t dim, int64_t num_rows) {
    const FewTokens tokens(input, num_tokens, dim);
    std::vector<Largest> largest(1);
    see_rows(num_rows, largest, [&](int64_t first, int64_t stop, Largest* mine) {
        for (int64_t row = first; row < stop; row += tokens.kRowsAtOnce) tokens.see(weight + row * dim, row, *mine);
    });
    return largest[0].with_upper_lanes();
}

// 16 tokens each.
std::vector<Largest> largest_of_many(const uint16_t* input, const uint16_t* weight, int64_t num_tokens, int64_t dim,
                                     int64_t num_rows) {
    const int64_t num_panels = (num_tokens + kPanel - 1) / kPanel, num_halves = (num_tokens + kTile - 1) / kTile;
    const auto panels = aligned<Word>(num_panels * kTile * dim);
    pack(input, panels.get(), num_tokens, dim);
    std::vector<Largest> largest(num_halves);
    see_rows(num_rows, largest, [&](int64_t first, int64_t stop, Largest* mine) {
        Sums sums;
        for (int64_t row = first; row < stop; row += kPanel) {
            const uint16_t* low = weight + row * dim;
            for (int64_t p = 0; p < num_panels; ++p) {
                const bool fetches = p == 0 && row + kPanel < stop;
                const Ahead ahead = {fetches ? low + kPanel * dim : nullptr};
                const bool both_columns = 2 * p + 1 < num_halves;
                multiply(low, low + kTile * dim, kPanel, panels.get() + p * kTile * dim, both_columns, ahead, dim, &sums);
                for (int64_t r = 0; r < kPanel; ++r) {
                    const __m512i in_row = _mm512_set1_epi32(static_cast<int32_t>(row + r));
                    mine[2 * p].see(_mm512_load_ps(sums.of[r]), in_row);
                    if (both_columns) mine[2 * p + 1].see(_mm512_load_ps(sums.of[r] + kTile), in_row);
                }
            }
        }
    });
    return largest;
}

}  // namespace

extern "C" {

int32_t uses_tiles() { return tiles_are_granted(); }

void pack_bfloat16(const uint16_t* rows, Word* panels, int64_t count, int64_t dim) { pack(rows, panels, count, dim); }

// input [num_tokens, dim], packed weight [num_outputs, dim], bias [num_outputs] or null, output [num_tokens, num_outputs];
// dim a multiple of 32, num_outputs of 16.
void linear_bfloat16(const bfloat16* input, const Word* panels, const float* bias, bfloat16* output, int64_t num_tokens,
                     int64_t dim, int64_t num_outputs) {
    const Rows rows(bits_of(input), num_tokens, dim);
    const int64_t num_tiles = rows.num_tiles(), num_panels = (num_outputs + kPanel - 1) / kPanel;
    const int64_t tiles_at_once = std::max<int64_t>(4, kRowBytes / (2 * dim) / kPanel * 2);
    const int64_t num_blocks = (num_tiles + tiles_at_once - 1) / tiles_at_once;
    tiles_are_granted();
#pragma omp parallel
    {
        [[maybe_unused]] const Tiles tiles;
        Sums sums;
#pragma omp for schedule(dynamic, 2)
        for (int64_t task = 0; task < num_blocks * num_panels; ++task) {
            const int64_t panel = task % num_panels, first = task / num_panels * tiles_at_once;
            const int64_t stop = std::min(num_tiles, first + tiles_at_once), column = panel * kPanel;
            const Word* columns = panels + panel * kTile * dim;
            const bool both_columns = column + kTile < num_outputs;
            const __m512 low_bias = bias ? _mm512_loadu_ps(bias + column) : _mm512_setzero_ps();
            const __m512 high_bias = bias && both_columns ? _mm512_loadu_ps(bias + column + kTile) : _mm512_setzero_ps();
            for (int64_t t = first; t < stop; t += 2) {
                // What follows this panel, this one too where it has just begun.
                const Ahead ahead = {t == first ? columns + kPrefetchWords : nullptr, true};
                const int64_t count = std::min(std::min(stop - t, int64_t{2}) * kTile, num_tokens - t * kTile);
                const uint16_t* high = count > kTile ? rows.tile(t + 1) : nullptr;
                multiply(rows.tile(t), high, count, columns, both_columns, ahead, dim, &sums);
                for (int64_t r = 0; r < count; ++r) {
                    uint16_t* target = bits_of(output) + (t * kTile + r) * num_outputs + column;
                    const __m512 low = _mm512_add_ps(_mm512_load_ps(sums.of[r]), low_bias);
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), to_bfloat16(low));
                    if (!both_columns) continue;
                    const __m512 high = _mm512_add_ps(_mm512_load_ps(sums.of[r] + kTile), high_bias);
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + kTile), to_bfloat16(high));
                }
            }
        }
    }
}

// input [num_tokens, dim], weight [num_rows, dim] as it is; of each token the row of its largest logit, rounded to
// bfloat16, the first of equals; and that logit, a NaN if any of them is one. dim and num_rows are multiples of 32.
void largest_logits_bfloat16(const uint16_t* input, const uint16_t* weight, int64_t* rows, float* logits,
                             int64_t num_tokens, int64_t dim, int64_t num_rows) {
    const bool is_few = !tiles_are_granted() && num_tokens <= FewTokens::kTokens;  // tiles keep up with memory as it is
    const std::vector<Largest> largest = is_few ? std::vector{largest_of_few(input, weight, num_tokens, dim, num_rows)}
                                                : largest_of_many(input, weight, num_tokens, dim, num_rows);
    for (int64_t token = 0; token < num_tokens; ++token) {
        const Largest& of = largest[token / kTile];
        alignas(64) float logit[kTile];
        alignas(64) int32_t row[kTile];
        _mm512_store_ps(logit, of.logit);
        _mm512_store_si512(row, of.row);
        const int64_t lane = token % kTile;
        rows[token] = row[lane];
        logits[token] = of.is_nan >> lane & 1 ? std::numeric_limits<float>::quiet_NaN() : logit[lane];
    }
}
}

#endif
