// Matrix products in bfloat16 with sums in float32: linear layers, and the output head of rows that need no logits but
// only the largest one. For processors with AMX tiles, or else with AVX-512's product of pairs (AVX512_BF16); on others
// the library lacks these functions, and the caller uses oneDNN's.
//
// One step multiplies 32 rows as they lie in memory by a panel of 32 columns:
//
//     rows [32, K]                     panel [K / 32][2][16][16]: of each half's 16 columns, pairs of numbers that follow
//     in memory order                  each other along K, which is what both instructions multiply by
//
// In a linear layer the rows are tokens and the panels are weights, packed once. In the output head the rows are weights,
// so that the table of embeddings serves as it is, and the panels are tokens: each lane holds one token's logits.

#ifdef __AVX512BF16__

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t kTile = 16;            // rows of a tile, and columns of half a panel
constexpr int64_t kStep = 32;            // numbers along K that a tile holds
constexpr int64_t kPanel = 2 * kTile;    // columns of a panel, and rows of a step
constexpr int64_t kPrefetchBytes = 4096;  // ahead in a panel; the next panel follows in memory
// Rows of tokens that stay in the second-level cache while all panels pass by.
constexpr int64_t kRowBytes = 512 * 1024;
// Rows of the output head that a thread takes at once. Other threads of the process may hold it up: then the rest goes on.
constexpr int64_t kHeadRows = 1024;

using Word = uint32_t;  // two numbers of bfloat16
struct alignas(64) Sums {
    float of[kPanel][kPanel];
};

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
std::unique_ptr<T[], Free> aligned(int64_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    void* memory = std::aligned_alloc(64, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return std::unique_ptr<T[], Free>(static_cast<T*>(memory));
}

inline void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T1); }

#ifdef __AMX_BF16__

// Linux gives a process the tiles' state only when it asks for it.
bool tiles_are_granted() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return granted;
}

// Tiles of a thread: 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for columns, all of 16 rows of 64 bytes.
class Tiles {
  public:
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t num_rows[16] = {};
        } shape;
        std::fill_n(shape.row_bytes, 8, uint16_t{64});
        std::fill_n(shape.num_rows, 8, uint8_t{kTile});
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

template <bool kBothRows, bool kBothColumns>
void multiply_tiles(const uint16_t* low, const uint16_t* high, const Word* panel, const char* ahead, int64_t dim, Sums* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < dim; k += kStep, panel += 2 * kTile * kTile) {
        if (ahead != nullptr)
            for (int64_t line = 0; line < 32; ++line) prefetch(ahead + k * 64 + line * 64);
        _tile_loadd(4, low + k, dim * 2);
        if constexpr (kBothRows) _tile_loadd(5, high + k, dim * 2);
        _tile_loadd(6, panel, 64);
        if constexpr (kBothColumns) _tile_loadd(7, panel + kTile * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (kBothColumns) _tile_dpbf16ps(1, 4, 7);
        if constexpr (kBothRows) _tile_dpbf16ps(2, 5, 6);
        if constexpr (kBothRows && kBothColumns) _tile_dpbf16ps(3, 5, 7);
    }
    constexpr int64_t stride = sizeof(sums->of[0]);
    _tile_stored(0, &sums->of[0][0], stride);
    _tile_stored(1, &sums->of[0][kTile], stride);
    _tile_stored(2, &sums->of[kTile][0], stride);
    _tile_stored(3, &sums->of[kTile][kTile], stride);
}

#else

bool tiles_are_granted() { return false; }
struct Tiles {};

#endif

// Eight rows at once: as many sums wait for each other's pairs as the processor has in flight.
template <bool kBothColumns>
void multiply_vectors(const uint16_t* rows, const Word* panel, int64_t dim, float (*sums)[kPanel]) {
    constexpr int64_t kRows = 8;
    __m512 low[kRows], high[kRows];
    for (int64_t r = 0; r < kRows; ++r) low[r] = high[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < dim; k += 2) {
        const Word* columns = panel + k / kStep * 2 * kTile * kTile + k % kStep / 2 * kTile;
        const auto first = (__m512bh)_mm512_load_si512(columns), second = (__m512bh)_mm512_load_si512(columns + kTile * kTile);
        for (int64_t r = 0; r < kRows; ++r) {
            Word pair;
            std::memcpy(&pair, rows + r * dim + k, sizeof(pair));
            const auto row = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
            low[r] = _mm512_dpbf16_ps(low[r], row, first);
            if constexpr (kBothColumns) high[r] = _mm512_dpbf16_ps(high[r], row, second);
        }
    }
    for (int64_t r = 0; r < kRows; ++r) {
        _mm512_store_ps(sums[r], low[r]);
        _mm512_store_ps(sums[r] + kTile, high[r]);
    }
}

// One step: 16 rows at `low` and 16 at `high`, or none where that is null, by one panel of which the first half may
// be enough. `ahead`: what to bring into the cache meanwhile, 64 · dim bytes, or null.
void multiply(const uint16_t* low, const uint16_t* high, const Word* panel, bool both_columns, const char* ahead,
              int64_t dim, Sums* sums) {
#ifdef __AMX_BF16__
    if (tiles_are_granted()) {
        if (high != nullptr)
            both_columns ? multiply_tiles<true, true>(low, high, panel, ahead, dim, sums)
                         : multiply_tiles<true, false>(low, high, panel, ahead, dim, sums);
        else
            both_columns ? multiply_tiles<false, true>(low, high, panel, ahead, dim, sums)
                         : multiply_tiles<false, false>(low, high, panel, ahead, dim, sums);
        return;
    }
#endif
    if (ahead != nullptr)
        for (int64_t line = 0; line < dim; ++line) prefetch(ahead + line * 64);
    for (int64_t r = 0; r < (high != nullptr ? kPanel : kTile); r += 8) {
        const uint16_t* rows = r < kTile ? low + r * dim : high + (r - kTile) * dim;
        both_columns ? multiply_vectors<true>(rows, panel, dim, sums->of + r)
                     : multiply_vectors<false>(rows, panel, dim, sums->of + r);
    }
}

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

// Rows, sixteen at a time; the last ones, filled up with zeros, lie apart.
class Rows {
  public:
    Rows(const uint16_t* rows, int64_t count, int64_t dim) : rows_(rows), count_(count), dim_(dim) {
        const int64_t rest = count % kTile;
        if (rest == 0) return;
        last_ = aligned<uint16_t>(kTile * dim);
        std::memcpy(last_.get(), rows + (count - rest) * dim, rest * dim * 2);
        std::memset(last_.get() + rest * dim, 0, (kTile - rest) * dim * 2);
    }
    int64_t num_tiles() const { return (count_ + kTile - 1) / kTile; }
    const uint16_t* tile(int64_t t) const { return (t + 1) * kTile <= count_ ? rows_ + t * kTile * dim_ : last_.get(); }

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

    void see(const float* sums, int64_t in_row) {
        const __m512 value = rounded(_mm512_load_ps(sums));
        is_nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        const __mmask16 larger = _mm512_cmp_ps_mask(value, logit, _CMP_GT_OQ);
        logit = _mm512_mask_mov_ps(logit, larger, value);
        row = _mm512_mask_mov_epi32(row, larger, _mm512_set1_epi32(static_cast<int32_t>(in_row)));
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
};

}  // namespace

extern "C" {

int32_t uses_tiles() { return tiles_are_granted(); }

void pack_bfloat16(const uint16_t* rows, Word* panels, int64_t count, int64_t dim) { pack(rows, panels, count, dim); }

// input [num_tokens, dim], packed weight [num_outputs, dim], bias [num_outputs] or null, output [num_tokens, num_outputs];
// dim a multiple of 32, num_outputs of 16.
void linear_bfloat16(const uint16_t* input, const Word* panels, const float* bias, uint16_t* output, int64_t num_tokens,
                     int64_t dim, int64_t num_outputs) {
    const Rows rows(input, num_tokens, dim);
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
                const char* ahead = t == first ? reinterpret_cast<const char*>(columns) + kPrefetchBytes : nullptr;
                multiply(rows.tile(t), t + 1 < stop ? rows.tile(t + 1) : nullptr, columns, both_columns, ahead, dim, &sums);
                const int64_t count = std::min(std::min(stop - t, int64_t{2}) * kTile, num_tokens - t * kTile);
                for (int64_t r = 0; r < count; ++r) {
                    uint16_t* target = output + (t * kTile + r) * num_outputs + column;
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
    const int64_t num_panels = (num_tokens + kPanel - 1) / kPanel, num_halves = (num_tokens + kTile - 1) / kTile;
    const auto panels = aligned<Word>(num_panels * kTile * dim);
    pack(input, panels.get(), num_tokens, dim);
    std::vector<Largest> largest(num_halves);
    tiles_are_granted();
#pragma omp parallel
    {
        [[maybe_unused]] const Tiles tiles;
        Sums sums;
        std::vector<Largest> mine(num_halves);
#pragma omp for schedule(dynamic)
        for (int64_t chunk = 0; chunk < num_rows; chunk += kHeadRows) {
            const int64_t stop = std::min(num_rows, chunk + kHeadRows);
            for (int64_t row = chunk; row < stop; row += kPanel) {
                const uint16_t* low = weight + row * dim;
                for (int64_t p = 0; p < num_panels; ++p) {
                    const bool fetches = p == 0 && row + kPanel < stop;
                    const char* ahead = fetches ? reinterpret_cast<const char*>(low + kPanel * dim) : nullptr;
                    const bool both_columns = 2 * p + 1 < num_halves;
                    multiply(low, low + kTile * dim, panels.get() + p * kTile * dim, both_columns, ahead, dim, &sums);
                    for (int64_t r = 0; r < kPanel; ++r) {
                        mine[2 * p].see(sums.of[r], row + r);
                        if (both_columns) mine[2 * p + 1].see(sums.of[r] + kTile, row + r);
                    }
                }
            }
        }
#pragma omp critical
        for (int64_t h = 0; h < num_halves; ++h) largest[h].merge(mine[h]);
    }
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
