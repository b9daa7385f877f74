// Numbers of a model, and as many floats at a time as a register holds. The vectors are those of the compiler, which it maps to
// whatever the processor has.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "processor.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

struct bfloat16 {
    uint16_t bits;
};

// As products take them.
inline const uint16_t* bits_of(const bfloat16* numbers) { return &numbers->bits; }
inline uint16_t* bits_of(bfloat16* numbers) { return &numbers->bits; }

inline float load(float value) { return value; }
inline float load(bfloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline void store(float* target, float value) { *target = value; }
inline void store(bfloat16* target, float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    target->bits = static_cast<uint16_t>(value != value ? 0x7fc0 : nearest_even);
}

template <typename T>
inline float rounded(float value) {
    T result;
    store(&result, value);
    return load(result);
}

#ifdef METRONOME_IS_AVX512
constexpr int64_t kLanes = 16;
#else
constexpr int64_t kLanes = 8;
#endif
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

inline Floats load_floats(const float* source) {
    Floats values;
    std::memcpy(&values, source, sizeof(values));
    return values;
}
inline Floats load_floats(const bfloat16* source) {
    Halves halves;
    std::memcpy(&halves, source, sizeof(halves));
#ifdef METRONOME_IS_AVX512  // one instruction, of which compilers make five
    return (Floats)((Words)_mm512_cvtepu16_epi32((__m256i)halves) << 16);
#elif defined(__AVX2__)
    return (Floats)((Words)_mm256_cvtepu16_epi32((__m128i)halves) << 16);
#else
    return (Floats)(__builtin_convertvector(halves, Words) << 16);
#endif
}
inline void store_floats(float* target, Floats values) { std::memcpy(target, &values, sizeof(values)); }

// The first `count` of a vector; the others are zero.
template <typename T>
inline Floats load_some(const T* source, int64_t count) {
    if (count >= kLanes) return load_floats(source);
    T some[kLanes] = {};
    std::copy_n(source, count, some);
    return load_floats(some);
}

// exp as a polynomial (Cephes), since compilers do not vectorise the library's without giving up NaN. Error: 2 units in
// the last place; beyond 87 on either side it stays at that value, and what is not finite becomes a NaN. The clamp works
// on bits: as a comparison it would be compiled into two more paths through every caller.
inline float exponential(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const auto magnitude = std::min(static_cast<int32_t>(bits & 0x7fffffff), std::bit_cast<int32_t>(87.0f));
    const auto clamped = std::bit_cast<float>(static_cast<uint32_t>(magnitude) | (bits & 0x80000000));
    const float n = std::floor(clamped * 1.44269504f + 0.5f);
    const float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
    return p * std::bit_cast<float>(exponent) + (x - x);  // 0, or NaN
}
