// Rows of numbers in 8 bits, sixteen rows at a time, with what that leaves out: enough to bound their products.
//
// Rows are first turned by a Hadamard matrix, which changes no product of two of them and spreads numbers that stand out over
// all others (QuaRot, arXiv 2404.00456): a step of 8 bits is as wide as the largest number makes it.

#pragma once

#include "processor.h"

#ifdef METRONOME_IS_AVX512

#include <cmath>
#include <limits>

#include "numbers.h"
#include "panels.h"

namespace {

constexpr int64_t kMostTurned = 1024;
constexpr float kMostSteps = 127.0f;
// Rows shorter than this, but for those that are zero, have no bound: their squares are no numbers of a float.
constexpr float kShortest = 1e-15f;

// Of sixteen rows: what a step is worth, the norm of what rounding left out, and the norm of all. The latter are infinite where
// there is no bound.
struct alignas(64) Bounds {
    float step[kTile], lost[kTile], norm[kTile];
};

// Number k of sixteen rows lies in columns[k]. By orthogonal matrices along the diagonal, as large as they go into `dim`, which
// is a multiple of 32.
void turn(Floats* columns, int64_t dim) {
    int64_t size = kStep;
    while (size < kMostTurned && dim % (2 * size) == 0) size *= 2;
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < dim; i += 2 * half)
            for (int64_t k = i; k < i + half; ++k) {
                const Floats a = columns[k], b = columns[k + half];
                columns[k] = a + b;
                columns[k + half] = a - b;
            }
    for (int64_t k = 0; k < dim; ++k) columns[k] *= scale;
}

// Each number becomes a multiple of its row's step, from -127 to 127.
void round_to_steps(Floats* columns, int64_t dim, Bounds* bounds) {
    __m512 largest = _mm512_setzero_ps(), norm = _mm512_setzero_ps(), lost = _mm512_setzero_ps();
    for (int64_t k = 0; k < dim; ++k) {
        const auto numbers = (__m512)columns[k];
        largest = _mm512_max_ps(largest, _mm512_abs_ps(numbers));
        norm = _mm512_fmadd_ps(numbers, numbers, norm);
    }
    norm = _mm512_sqrt_ps(norm);
    const __mmask16 is_zero = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_EQ_OQ);
    // A NaN is neither.
    const __mmask16 is_bounded = _mm512_cmp_ps_mask(norm, _mm512_set1_ps(kShortest), _CMP_GE_OQ) &
                                 _mm512_cmp_ps_mask(norm, _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_LT_OQ);
    const __m512 step = _mm512_maskz_div_ps(is_bounded, largest, _mm512_set1_ps(kMostSteps));
    const __m512 steps = _mm512_maskz_div_ps(is_bounded, _mm512_set1_ps(kMostSteps), largest);
    for (int64_t k = 0; k < dim; ++k) {
        const auto numbers = (__m512)columns[k];
        const __m512 multiple =
            _mm512_roundscale_ps(_mm512_maskz_mul_ps(is_bounded, numbers, steps), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m512 rest = _mm512_fnmadd_ps(multiple, step, numbers);
        lost = _mm512_fmadd_ps(rest, rest, lost);
        columns[k] = (Floats)multiple;
    }
    const __m512 unbounded = 
        _mm512_maskz_mov_ps(~is_bounded & ~is_zero, _mm512_set1_ps(std::numeric_limits<float>::infinity()));
    _mm512_store_ps(bounds->step, step);
    _mm512_store_ps(bounds->lost, _mm512_add_ps(_mm512_maskz_sqrt_ps(is_bounded, lost), unbounded));
    _mm512_store_ps(bounds->norm, _mm512_add_ps(_mm512_maskz_mov_ps(is_bounded, norm), unbounded));
}

}  // namespace

#endif
