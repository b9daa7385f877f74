// The largest of a token's logits, while they are computed.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <limits>

#include "panels.h"
#include "sixteen.h"

namespace {

struct LargestLogit {
    int64_t entry;  // of the vocabulary
    float logit;    // a NaN if any is one
};

// The largest logit of each lane, rounded as those of a linear layer are, and its entry of the vocabulary, the first of those
// that are equal.
struct Largest {
    Sixteen logit = all(-std::numeric_limits<float>::infinity());
    SixteenInts entry = all(0);
    Mask is_nan = {};

    // Those of later entries.
    void see(Sixteen sums, SixteenInts entries) {
        const Sixteen value = rounded(sums);
        is_nan = is_nan | unordered(value, value);
        const Mask larger = greater(value, logit);
        logit = chosen(larger, value, logit);
        entry = chosen(larger, entries, entry);
    }

    // Of two that are equal, the lower entry: threads take panels in any order.
    void merge(const Largest& other) {
        const Mask same = equal(other.logit, logit);
        const Mask better = greater(other.logit, logit) | (same & less(other.entry, entry));
        logit = chosen(better, other.logit, logit);
        entry = chosen(better, other.entry, entry);
        is_nan = is_nan | other.is_nan;
    }

    LargestLogit of_all_lanes() const {
        const float largest = greatest(logit);
        const int32_t first = least(equal(logit, all(largest)), entry);
        return {first, any(is_nan) ? std::numeric_limits<float>::quiet_NaN() : largest};
    }
};

}  // namespace

#endif
