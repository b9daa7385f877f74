// Linear layers in bfloat16: tokens are the rows of the product, weights are its panels, packed once. Where the processor has
// not what products are made of the library lacks these functions, and the caller uses oneDNN's.

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "operations.h"
#include "rows.h"
#include "sixteen.h"

extern "C" {

int32_t uses_tiles() { return tiles_are_granted(); }

// input [num_tokens, dim], packed weight [num_outputs, dim], bias [num_outputs] or null, output [num_tokens, num_outputs];
// dim a multiple of 32, num_outputs of 16.
void linear_bfloat16(const bfloat16* input, const Word* panels, const float* bias, bfloat16* output, int64_t num_tokens,
                     int64_t dim, int64_t num_outputs) {
    const Rows rows(bits_of(input), num_tokens, dim);
    const int64_t num_tiles = rows.num_tiles(), num_panels = (num_outputs + kPanel - 1) / kPanel;
    const int64_t tiles_at_once = std::max<int64_t>(4, kNumbersInCache / dim / kPanel * 2);
    const int64_t num_blocks = (num_tiles + tiles_at_once - 1) / tiles_at_once;
    tiles_are_granted();
#pragma omp parallel
    {
        [[maybe_unused]] const Tiles tiles;
        Sums sums;
#pragma omp for schedule(dynamic, 2)
        for (int64_t task = 0; task < num_blocks * num_panels; ++task) {
            const int64_t panel = task % num_panels, first = task / num_panels * tiles_at_once;
            const int64_t stop = std::min(num_tiles, first + tiles_at_once), column = panel * kPanel;
            const Word* columns = panels + panel * kTile * dim;
            const bool both_columns = column + kTile < num_outputs;
            const Sixteen low_bias = bias ? sixteen_at_any(bias + column) : all(0.0f);
            const Sixteen high_bias = bias && both_columns ? sixteen_at_any(bias + column + kTile) : all(0.0f);
            for (int64_t t = first; t < stop; t += 2) {
                // What follows this panel, this one too where it has just begun.
                const Ahead ahead = {t == first ? columns + kPrefetchWords : nullptr, true};
                const int64_t count = std::min(std::min(stop - t, int64_t{2}) * kTile, num_tokens - t * kTile);
                const RowNumber* high = count > kTile ? rows.tile(t + 1) : nullptr;
                multiply(rows.tile(t), high, count, columns, both_columns, ahead, dim, &sums);
                for (int64_t r = 0; r < count; ++r) {
                    uint16_t* target = bits_of(output) + (t * kTile + r) * num_outputs + column;
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrowed(sixteen(sums.of[r]) + low_bias));
                    if (!both_columns) continue;
                    const Sixteen high = sixteen(sums.of[r] + kTile) + high_bias;
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + kTile), narrowed(high));
                }
            }
        }
    }
}
}

#endif
