// Products of rows in bfloat16 by panels of columns, with sums in float32: what linear layers, the output head and the
// attention of chunks are made of. For processors with AMX tiles, or else with AVX-512's product of pairs (AVX512_BF16).
//
// One step multiplies 32 rows as they lie in memory by a panel of 32 columns:
//
//     rows [32, K]                     panel [K / 32][2][16][16]: of each half's 16 columns, pairs of numbers that follow
//     in memory order                  each other along K, which is what both instructions multiply by

#pragma once

#ifdef __AVX512BF16__

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t kTile = 16;            // rows of a tile, and columns of half a panel
constexpr int64_t kStep = 32;            // numbers along K that a tile holds
constexpr int64_t kPanel = 2 * kTile;    // columns of a panel, and rows of a step

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

// Memory that stays from call to call: fresh pages would cost more than what is written to them.
template <typename T>
class Workspace {
  public:
    T* of(int64_t count) {
        if (count > size_) {
            memory_ = aligned<T>(count);
            size_ = count;
        }
        return memory_.get();
    }

  private:
    std::unique_ptr<T[], Free> memory_;
    int64_t size_ = 0;
};

// What to bring into the cache during a step, 64 bytes for each number of K, or nothing. The first rows of a step fetch all
// of what is soon multiplied by itself; else all rows fetch their share, since many lines at once wait for each other.
struct Ahead {
    const void* from = nullptr;
    bool is_soon = false;
};

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
void multiply_tiles(const uint16_t* low, const uint16_t* high, const Word* panel, Ahead ahead, int64_t dim, Sums* sums) {
    const char* from = static_cast<const char*>(ahead.from);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < dim; k += kStep, panel += 2 * kTile * kTile) {
        if (from != nullptr)
            for (int64_t line = 0; line < kStep; ++line) prefetch(from + (k + line) * 64);
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

// Sixteen sums at once, as many as it takes to keep both units of the processor busy while each sum waits for itself:
// eight rows by 32 columns, or sixteen rows by 16. Fewer rows where there are fewer.
template <bool kBothColumns>
constexpr int64_t kVectorRows = kBothColumns ? 8 : 16;

template <bool kBothColumns, int64_t kRows>
void multiply_vectors(const uint16_t* rows, const Word* panel, const char* ahead, int64_t num_lines, int64_t dim,
                      float (*sums)[kPanel]) {
    __m512 low[kRows], high[kBothColumns ? kRows : 1];
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
        low[r] = _mm512_setzero_ps();
        if constexpr (kBothColumns) high[r] = _mm512_setzero_ps();
    }
    for (int64_t step = 0; step < dim; step += kStep, panel += 2 * kTile * kTile) {
        for (int64_t line = 0; line < num_lines; ++line) prefetch(ahead + (step / kStep * num_lines + line) * 64);
        for (int64_t k = 0; k < kStep / 2; ++k) {
            const auto first = (__m512bh)_mm512_load_si512(panel + k * kTile);
            [[maybe_unused]] __m512bh second;
            if constexpr (kBothColumns) second = (__m512bh)_mm512_load_si512(panel + kTile * kTile + k * kTile);
#pragma GCC unroll 16
            for (int64_t r = 0; r < kRows; ++r) {
                Word pair;
                std::memcpy(&pair, rows + r * dim + step + 2 * k, sizeof(pair));
                const auto row = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
                low[r] = _mm512_dpbf16_ps(low[r], row, first);
                if constexpr (kBothColumns) high[r] = _mm512_dpbf16_ps(high[r], row, second);
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
void multiply_some(const uint16_t* rows, int64_t num_rows, const Word* panel, const char* ahead, int64_t num_lines,
                   int64_t dim, float (*sums)[kPanel]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows)
            return multiply_some<kBothColumns, kRows - 1>(rows, num_rows, panel, ahead, num_lines, dim, sums);
    multiply_vectors<kBothColumns, kRows>(rows, panel, ahead, num_lines, dim, sums);
}

template <bool kBothColumns>
void multiply_all(const uint16_t* low, const uint16_t* high, int64_t num_rows, const Word* panel, Ahead ahead, int64_t dim,
                  Sums* sums) {
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

// One step: `num_rows` rows, the first 16 at `low` and the others at `high`, by one panel of which the first half may be
// enough. Sums of other rows mean nothing.
void multiply(const uint16_t* low, const uint16_t* high, int64_t num_rows, const Word* panel, bool both_columns, Ahead ahead,
              int64_t dim, Sums* sums) {
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
