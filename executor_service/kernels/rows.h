// The tokens of a product by panels of weights.

#pragma once

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "steps.h"

namespace {

// Numbers of tokens that stay in the second-level cache while all panels pass by.
constexpr int64_t kNumbersInCache = 512 * 1024 / sizeof(RowNumber);

// Rows as a step takes them, sixteen at a time. Tiles take no fewer: for them the last ones, filled up with zeros, lie apart.
class Rows {
  public:
    Rows(const uint16_t* rows, int64_t count, int64_t dim) : count_(count), dim_(dim) {
#ifdef METRONOME_MULTIPLIES_PAIRS
        rows_ = rows;
#else
        static thread_local Workspace<RowNumber> space;
        RowNumber* widened = space.of(count * dim);
#pragma omp parallel for if (count * dim > 65536)
        for (int64_t r = 0; r < count; ++r) to_row(rows + r * dim, widened + r * dim, dim);
        rows_ = widened;
#endif
        const int64_t rest = count % kTile;
        if (rest == 0 || !tiles_are_granted()) return;
        last_ = aligned<RowNumber>(kTile * dim);
        std::copy_n(rows_ + (count - rest) * dim, rest * dim, last_.get());
        std::fill_n(last_.get() + rest * dim, (kTile - rest) * dim, RowNumber{0});
    }
    int64_t num_tiles() const { return (count_ + kTile - 1) / kTile; }
    const RowNumber* tile(int64_t t) const {
        return last_ && (t + 1) * kTile > count_ ? last_.get() : rows_ + t * kTile * dim_;
    }

  private:
    const RowNumber* rows_;
    int64_t count_, dim_;
    std::unique_ptr<RowNumber[], Free> last_;
};

}  // namespace

#endif
