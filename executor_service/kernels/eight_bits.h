// Rows of numbers in 8 bits, sixteen rows at a time, with what that leaves out: enough to bound their products.
//
// Rows are first turned by a Hadamard matrix, which changes no product of two of them and spreads numbers that stand out over
// all others (QuaRot, arXiv 2404.00456): a step of 8 bits is as wide as the largest number makes it.

#pragma once

#include "processor.h"

#ifdef METRONOME_MULTIPLIES_BYTES

#include <cmath>
#include <limits>

#include "panels.h"
#include "sixteen.h"

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
void turn(Sixteen* columns, int64_t dim) {
    int64_t size = kStep;
    while (size < kMostTurned && dim % (2 * size) == 0) size *= 2;
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < dim; i += 2 * half)
            for (int64_t k = i; k < i + half; ++k) {
                const Sixteen a = columns[k], b = columns[k + half];
                columns[k] = a + b;
                columns[k + half] = a - b;
            }
    for (int64_t k = 0; k < dim; ++k) columns[k] = columns[k] * all(scale);
}

struct AsLargeAsTheyAre {
    static Sixteen largest(const Sixteen*, int64_t, Sixteen largest) { return largest; }
};

// Each number becomes a multiple of its row's step, from -127 to 127. What these are to be multiplied by may ask for wider
// steps: `Size` tells how large a row counts, beside its largest number.
template <typename Size = AsLargeAsTheyAre>
void round_to_steps(Sixteen* columns, int64_t dim, Bounds* bounds) {
    Sixteen largest = all(0.0f), norm = all(0.0f), lost = all(0.0f);
    for (int64_t k = 0; k < dim; ++k) {
        const Sixteen numbers = columns[k];
        largest = larger(largest, absolute(numbers));
        norm = sum_of_product(numbers, numbers, norm);
    }
    norm = root(norm);
    const Mask is_zero = equal(largest, all(0.0f));
    // A NaN is neither.
    const Mask is_bounded = at_least(norm, all(kShortest)) & less(norm, all(std::numeric_limits<float>::infinity()));
    largest = Size::largest(columns, dim, largest);
    const Sixteen step = divided(is_bounded, largest, all(kMostSteps));
    const Sixteen steps = divided(is_bounded, all(kMostSteps), largest);
    for (int64_t k = 0; k < dim; ++k) {
        const Sixteen numbers = columns[k];
        const Sixteen multiple = whole(multiplied(is_bounded, numbers, steps));
        const Sixteen rest = rest_of_product(multiple, step, numbers);
        lost = sum_of_product(rest, rest, lost);
        columns[k] = multiple;
    }
    const Sixteen unbounded = only(neither(is_bounded, is_zero), all(std::numeric_limits<float>::infinity()));
    store(bounds->step, step);
    store(bounds->lost, root(is_bounded, lost) + unbounded);
    store(bounds->norm, only(is_bounded, norm) + unbounded);
}

}  // namespace

#endif
