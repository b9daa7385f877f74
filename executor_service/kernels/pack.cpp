// Rows of a weight as panels, and back.

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "panels.h"

namespace {

// Where the pair of numbers at k of a column lies in its panel.
inline int64_t place_of(int64_t column, int64_t k) {
    return k / kStep * 2 * kTile * kTile + column / kTile * kTile * kTile + k % kStep / 2 * kTile + column % kTile;
}

}  // namespace

extern "C" {

// rows [count, dim] as panels of 32 columns each, those that fill up the last are zero. `panels` may be `rows`, where
// `count` is a multiple of 32: a panel takes the place of its rows.
void pack_bfloat16(const uint16_t* rows, Word* panels, int64_t count, int64_t dim) {
    const int64_t num_panels = (count + kPanel - 1) / kPanel;
#pragma omp parallel if (count * dim > 65536)
    {
        const auto panel = aligned<Word>(kTile * dim);
#pragma omp for
        for (int64_t p = 0; p < num_panels; ++p) {
            for (int64_t k = 0; k < dim; k += 2)
                for (int64_t column = 0; column < kPanel; ++column) {
                    Word pair = 0;
                    if (p * kPanel + column < count) std::memcpy(&pair, rows + (p * kPanel + column) * dim + k, sizeof(pair));
                    panel[place_of(column, k)] = pair;
                }
            std::copy_n(panel.get(), kTile * dim, panels + p * kTile * dim);
        }
    }
}

// The rows with these numbers, [count, dim].
void unpack_rows_bfloat16(const Word* panels, const int64_t* numbers, uint16_t* rows, int64_t count, int64_t dim) {
#pragma omp parallel for if (count * dim > 65536)
    for (int64_t r = 0; r < count; ++r) {
        const Word* panel = panels + numbers[r] / kPanel * kTile * dim;
        for (int64_t k = 0; k < dim; k += 2)
            std::memcpy(rows + r * dim + k, panel + place_of(numbers[r] % kPanel, k), sizeof(Word));
    }
}
}

#endif
