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

inline void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T1); }

}  // namespace

#endif
