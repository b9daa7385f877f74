// Sixteen numbers at once, for what becomes of sums: a vector of AVX-512, or two of AVX2. + adds them.

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
inline Sixteen sixteen_at_any(const float* from) { return _mm512_loadu_ps(from); }

inline SixteenInts added(SixteenInts a, SixteenInts b) { return _mm512_add_epi32(a, b); }
inline Mask unordered(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
inline Mask greater(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask equal(Sixteen a, Sixteen b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask less(SixteenInts a, SixteenInts b) { return _mm512_cmplt_epi32_mask(a, b); }
inline bool any(Mask mask) { return mask != 0; }
inline Sixteen chosen(Mask mask, Sixteen yes, Sixteen no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline SixteenInts chosen(Mask mask, SixteenInts yes, SixteenInts no) { return _mm512_mask_mov_epi32(no, mask, yes); }
inline float greatest(Sixteen values) { return _mm512_reduce_max_ps(values); }
inline int32_t least(Mask mask, SixteenInts values) { return _mm512_mask_reduce_min_epi32(mask, values); }  // of those it has

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

inline Sixteen operator+(Sixteen a, Sixteen b) { return {a.low + b.low, a.high + b.high}; }
inline SixteenInts added(SixteenInts a, SixteenInts b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
template <int kPredicate>
inline Mask compared(Sixteen a, Sixteen b) {
    return {_mm256_cmp_ps(a.low, b.low, kPredicate), _mm256_cmp_ps(a.high, b.high, kPredicate)};
}
inline Mask unordered(Sixteen a, Sixteen b) { return compared<_CMP_UNORD_Q>(a, b); }
inline Mask greater(Sixteen a, Sixteen b) { return compared<_CMP_GT_OQ>(a, b); }
inline Mask equal(Sixteen a, Sixteen b) { return compared<_CMP_EQ_OQ>(a, b); }
inline Mask less(SixteenInts a, SixteenInts b) {
    return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.low, a.low)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.high, a.high))};
}
inline Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)}; }
inline Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)}; }
inline bool any(Mask mask) { return _mm256_movemask_ps(_mm256_or_ps(mask.low, mask.high)) != 0; }
inline Sixteen chosen(Mask mask, Sixteen yes, Sixteen no) {
    return {_mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high)};
}
inline SixteenInts chosen(Mask mask, SixteenInts yes, SixteenInts no) {
    return {_mm256_blendv_epi8(no.low, yes.low, _mm256_castps_si256(mask.low)),
            _mm256_blendv_epi8(no.high, yes.high, _mm256_castps_si256(mask.high))};
}
inline float greatest(Sixteen values) {
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, _mm256_max_ps(values.low, values.high));
    return *std::max_element(lanes, lanes + 8);
}
inline int32_t least(Mask mask, SixteenInts values) {
    const SixteenInts those = chosen(mask, values, all(std::numeric_limits<int32_t>::max()));
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_min_epi32(those.low, those.high));
    return *std::min_element(lanes, lanes + 8);
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
