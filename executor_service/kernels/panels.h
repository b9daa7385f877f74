// Panels of columns in bfloat16, by which rows are multiplied (steps.h): how they lie in memory, and memory for them.
//
//     rows [32, K]                     panel [K / 32][2][16][16]: of each half's 16 columns, pairs of numbers that follow
//     in memory order                  each other along K, which is what the instructions for pairs multiply by

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

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

// Each rounded to bfloat16, of two that are as near to the even one.
inline __m256i narrowed(__m512 values) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(values);
#else
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i halfway = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i nearest = _mm512_srli_epi32(_mm512_add_epi32(bits, halfway), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(nearest, is_nan, _mm512_set1_epi32(0x7fc0)));
#endif
}

inline void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T1); }

}  // namespace

#endif
