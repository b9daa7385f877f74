// Sixteen numbers at once, for what becomes of sums: a vector of AVX-512, or two of AVX2. + - * are those of each lane.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace {

#ifdef METRONOME_IS_AVX512

using Sixteen = __m512;
using SixteenInts = __m512i;
using Mask = __mmask16;  // & and | combine masks

inline Sixteen all(float value) { return _mm512_set1_ps(value); }
inline SixteenInts all(int32_t value) { return _mm512_set1_epi32(value); }
inline SixteenInts counted() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// At addresses that are multiples of 64, and at any.
inline Sixteen sixteen(const float* from) { return _mm512_load_ps(from); }
inline SixteenInts sixteen(const int32_t* from) { return _mm512_load_si512(from); }
inline void store(float* target, Sixteen values) { _mm512_store_ps(target, values); }
inline void store(void* target, SixteenInts values) { _mm512_store_si512(target, values); }
inline Sixteen sixteen_at_any(const float* from) { return _mm512_loadu_ps(from); }

inline SixteenInts added(SixteenInts a, SixteenInts b) { return _mm512_add_epi32(a, b); }
// The second where one is a NaN.
inline Sixteen larger(Sixteen a, Sixteen b) { return _mm512_max_ps(a, b); }
inline Sixteen absolute(Sixteen a) { return _mm512_abs_ps(a); }
inline Sixteen root(Sixteen a) { return _mm512_sqrt_ps(a); }
inline Sixteen sum_of_product(Sixteen a, Sixteen b, Sixteen c) { return _mm512_fmadd_ps(a, b, c); }          // a * b + c
inline Sixteen rest_of_product(Sixteen a, Sixteen b, Sixteen whole) { return _mm512_fnmadd_ps(a, b, whole); }  // whole - a * b

inline Mask unordered(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
inline Mask greater(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask at_least(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Mask less(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask not_less(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }  // or a NaN
inline Mask equal(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask less(SixteenInts a, SixteenInts b) { return _mm512_cmplt_epi32_mask(a, b); }
inline bool any(Mask mask) { return mask != 0; }
inline unsigned bits_of(Mask mask) { return mask; }  // one for each lane
inline Mask neither(Mask a, Mask b) { return static_cast<Mask>(~a & ~b); }
inline Sixteen chosen(Mask mask, Sixteen yes, Sixteen no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline SixteenInts chosen(Mask mask, SixteenInts yes, SixteenInts no) { return _mm512_mask_mov_epi32(no, mask, yes); }
// Zero in other lanes than those of the mask.
inline Sixteen only(Mask mask, Sixteen values) { return _mm512_maskz_mov_ps(mask, values); }
inline Sixteen multiplied(Mask mask, Sixteen a, Sixteen b) { return _mm512_maskz_mul_ps(mask, a, b); }
inline Sixteen divided(Mask mask, Sixteen a, Sixteen b) { return _mm512_maskz_div_ps(mask, a, b); }
inline Sixteen root(Mask mask, Sixteen a) { return _mm512_maskz_sqrt_ps(mask, a); }
inline float greatest(Sixteen values) { return _mm512_reduce_max_ps(values); }
inline float greatest(Mask mask, Sixteen values) { return _mm512_mask_reduce_max_ps(mask, values); }
inline int32_t least(Mask mask, SixteenInts values) { return _mm512_mask_reduce_min_epi32(mask, values); }  // of those it has

// To whole numbers, of two that are as near to the even one; and to and from integers.
inline Sixteen whole(Sixteen a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline SixteenInts ints(Sixteen a) { return _mm512_cvtps_epi32(a); }
inline Sixteen floats(SixteenInts a) { return _mm512_cvtepi32_ps(a); }
template <int kBits>
inline SixteenInts shifted(SixteenInts a) { return _mm512_slli_epi32(a, kBits); }
inline SixteenInts united(SixteenInts a, SixteenInts b) { return _mm512_or_si512(a, b); }

// Pairs of numbers in bfloat16, and the first and the second of each.
inline SixteenInts sixteen_pairs(const void* from) { return _mm512_load_si512(from); }
inline Sixteen first_of(SixteenInts pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Sixteen second_of(SixteenInts pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}

// Each rounded to bfloat16, of two that are as near to the even one.
inline __m256i narrowed(Sixteen values) {
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

// The same as floats.
inline Sixteen rounded(Sixteen values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrowed(values)), 16));
}

#else

struct Sixteen {
    __m256 low, high;
};
struct SixteenInts {
    __m256i low, high;
};
// All bits of a lane, or none.
struct Mask {
    __m256 low, high;
};

inline Sixteen all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline SixteenInts all(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline SixteenInts counted() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

inline Sixteen sixteen(const float* from) { return {_mm256_load_ps(from), _mm256_load_ps(from + 8)}; }
inline Sixteen sixteen_at_any(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline SixteenInts sixteen(const int32_t* from) {
    const auto* halves = reinterpret_cast<const __m256i*>(from);
    return {_mm256_load_si256(halves), _mm256_load_si256(halves + 1)};
}
inline void store(float* target, Sixteen values) {
    _mm256_store_ps(target, values.low);
    _mm256_store_ps(target + 8, values.high);
}
inline void store(void* target, SixteenInts values) {
    auto* halves = static_cast<__m256i*>(target);
    _mm256_store_si256(halves, values.low);
    _mm256_store_si256(halves + 1, values.high);
}

inline Sixteen operator+(Sixteen a, Sixteen b) { return {a.low + b.low, a.high + b.high}; }
inline Sixteen operator-(Sixteen a, Sixteen b) { return {a.low - b.low, a.high - b.high}; }
inline Sixteen operator*(Sixteen a, Sixteen b) { return {a.low * b.low, a.high * b.high}; }
inline SixteenInts added(SixteenInts a, SixteenInts b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Sixteen larger(Sixteen a, Sixteen b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Sixteen absolute(Sixteen a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Sixteen root(Sixteen a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
inline Sixteen sum_of_product(Sixteen a, Sixteen b, Sixteen c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Sixteen rest_of_product(Sixteen a, Sixteen b, Sixteen whole) {
    return {_mm256_fnmadd_ps(a.low, b.low, whole.low), _mm256_fnmadd_ps(a.high, b.high, whole.high)};
}

template <int kPredicate>
inline Mask compared(Sixteen a, Sixteen b) {
    return {_mm256_cmp_ps(a.low, b.low, kPredicate), _mm256_cmp_ps(a.high, b.high, kPredicate)};
}
inline Mask unordered(Sixteen a, Sixteen b) { return compared<_CMP_UNORD_Q>(a, b); }
inline Mask greater(Sixteen a, Sixteen b) { return compared<_CMP_GT_OQ>(a, b); }
inline Mask at_least(Sixteen a, Sixteen b) { return compared<_CMP_GE_OQ>(a, b); }
inline Mask less(Sixteen a, Sixteen b) { return compared<_CMP_LT_OQ>(a, b); }
inline Mask not_less(Sixteen a, Sixteen b) { return compared<_CMP_NLT_UQ>(a, b); }
inline Mask equal(Sixteen a, Sixteen b) { return compared<_CMP_EQ_OQ>(a, b); }
inline Mask less(SixteenInts a, SixteenInts b) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.low, a.low)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.high, a.high))};
}
inline Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)}; }
inline Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)}; }
inline bool any(Mask mask) { return _mm256_movemask_ps(_mm256_or_ps(mask.low, mask.high)) != 0; }
inline unsigned bits_of(Mask mask) { return _mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8; }
inline Mask neither(Mask a, Mask b) {
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return {_mm256_andnot_ps(_mm256_or_ps(a.low, b.low), ones), _mm256_andnot_ps(_mm256_or_ps(a.high, b.high), ones)};
}
inline Sixteen chosen(Mask mask, Sixteen yes, Sixteen no) {
    return {_mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high)};
}
inline SixteenInts chosen(Mask mask, SixteenInts yes, SixteenInts no) {
    return {_mm256_blendv_epi8(no.low, yes.low, _mm256_castps_si256(mask.low)),
            _mm256_blendv_epi8(no.high, yes.high, _mm256_castps_si256(mask.high))};
}
inline Sixteen only(Mask mask, Sixteen values) { return {_mm256_and_ps(mask.low, values.low), _mm256_and_ps(mask.high, values.high)}; }
inline Sixteen multiplied(Mask mask, Sixteen a, Sixteen b) { return only(mask, a * b); }
inline Sixteen divided(Mask mask, Sixteen a, Sixteen b) { return only(mask, {a.low / b.low, a.high / b.high}); }
inline Sixteen root(Mask mask, Sixteen a) { return only(mask, root(a)); }
inline float greatest(Sixteen values) {
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, _mm256_max_ps(values.low, values.high));
    return *std::max_element(lanes, lanes + 8);
}
inline float greatest(Mask mask, Sixteen values) {
    return greatest(chosen(mask, values, all(-std::numeric_limits<float>::infinity())));
}
inline int32_t least(Mask mask, SixteenInts values) {
    const SixteenInts those = chosen(mask, values, all(std::numeric_limits<int32_t>::max()));
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_min_epi32(those.low, those.high));
    return *std::min_element(lanes, lanes + 8);
}

inline Sixteen whole(Sixteen a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}
inline SixteenInts ints(Sixteen a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline Sixteen floats(SixteenInts a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
template <int kBits>
inline SixteenInts shifted(SixteenInts a) { return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)}; }
inline SixteenInts united(SixteenInts a, SixteenInts b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }

inline SixteenInts sixteen_pairs(const void* from) { return sixteen(static_cast<const int32_t*>(from)); }
inline Sixteen first_of(SixteenInts pairs) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(pairs.high, 16))};
}
inline Sixteen second_of(SixteenInts pairs) {
    const __m256i those = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(pairs.low, those)), _mm256_castsi256_ps(_mm256_and_si256(pairs.high, those))};
}

// The bits of each as a float that is rounded to bfloat16, of two that are as near to the even one.
inline __m256i rounded_bits(__m256 values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    const __m256 no_number = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    const __m256 with_those = _mm256_blendv_ps(_mm256_castsi256_ps(nearest), no_number, is_nan);
    return _mm256_and_si256(_mm256_castps_si256(with_those), _mm256_set1_epi32(static_cast<int>(0xffff0000)));
}
inline __m256i narrowed(Sixteen values) {
    const __m256i low = _mm256_srli_epi32(rounded_bits(values.low), 16);
    const __m256i high = _mm256_srli_epi32(rounded_bits(values.high), 16);
    // Packing takes the first four of both, then the last.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11'01'10'00);
}
inline Sixteen rounded(Sixteen values) {
    return {_mm256_castsi256_ps(rounded_bits(values.low)), _mm256_castsi256_ps(rounded_bits(values.high))};
}

#endif

}  // namespace

#endif
