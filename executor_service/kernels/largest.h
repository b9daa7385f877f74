// The largest of a token's logits, while they are computed.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <limits>

#include "numbers.h"
#include "panels.h"

namespace {

inline __m512i lanes() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

// As the logits of a linear layer are.
inline __m512 rounded(__m512 values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrowed(values)), 16));
}

struct LargestLogit {
    int64_t entry;  // of the vocabulary
    float logit;    // a NaN if any is one
};

// The largest logit of each lane and its entry of the vocabulary, the first of those that are equal.
struct Largest {
    __m512 logit = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512i entry = _mm512_setzero_si512();
    __mmask16 is_nan = 0;

    // Those of later entries.
    void see(__m512 sums, __m512i entries) {
        const __m512 value = rounded(sums);
        is_nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        const __mmask16 larger = _mm512_cmp_ps_mask(value, logit, _CMP_GT_OQ);
        logit = _mm512_mask_mov_ps(logit, larger, value);
        entry = _mm512_mask_mov_epi32(entry, larger, entries);
    }

    // Of two that are equal, the lower entry: threads take panels in any order.
    void merge(const Largest& other) {
        const __mmask16 equal = _mm512_cmp_ps_mask(other.logit, logit, _CMP_EQ_OQ);
        const __mmask16 better = _mm512_cmp_ps_mask(other.logit, logit, _CMP_GT_OQ) |
                                 (equal & _mm512_cmplt_epi32_mask(other.entry, entry));
        logit = _mm512_mask_mov_ps(logit, better, other.logit);
        entry = _mm512_mask_mov_epi32(entry, better, other.entry);
        is_nan |= other.is_nan;
    }

    LargestLogit of_all_lanes() const {
        const float largest = _mm512_reduce_max_ps(logit);
        const __mmask16 equal = _mm512_cmp_ps_mask(logit, _mm512_set1_ps(largest), _CMP_EQ_OQ);
        const int32_t first = _mm512_mask_reduce_min_epi32(equal, entry);
        return {first, is_nan ? std::numeric_limits<float>::quiet_NaN() : largest};
    }
};

}  // namespace

#endif
