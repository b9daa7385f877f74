// The output head in bfloat16 for tokens that need no logits but only the largest one: a linear layer that keeps no result.

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <vector>

#include "largest.h"
#include "rows.h"

namespace {

// Panels that a thread takes at once. Other threads of the process may hold it up: then the rest goes on.
constexpr int64_t kPanelsAtOnce = 32;

// What all tokens get from a panel whose first column is the logit of vocabulary entry `entry`.
void see(const Rows& tokens, const Word* panel, int64_t entry, int64_t num_tokens, int64_t dim, Sums* sums,
         Largest* largest) {
    const SixteenInts low = added(counted(), all(static_cast<int32_t>(entry)));
    const SixteenInts high = added(low, all(static_cast<int32_t>(kTile)));
    for (int64_t t = 0; t < tokens.num_tiles(); t += 2) {
        const int64_t first = t * kTile, count = std::min(kPanel, num_tokens - first);
        // All of a panel's rows fetch the panel that follows, or the only ones what soon follows.
        const bool is_soon = num_tokens <= kMostRows;
        const Ahead ahead = {t == 0 ? panel + (is_soon ? kPrefetchWords : kTile * dim) : nullptr, is_soon};
        multiply(tokens.tile(t), count > kTile ? tokens.tile(t + 1) : nullptr, count, panel, true, ahead, dim, sums);
        for (int64_t r = 0; r < count; ++r) {
            largest[first + r].see(sixteen(sums->of[r]), low);
            largest[first + r].see(sixteen(sums->of[r] + kTile), high);
        }
    }
}

}  // namespace

extern "C" {

// input [num_tokens, dim], packed weight [num_entries, dim]; of each token the entry of its largest logit, rounded to
// bfloat16, the first of equals; and that logit, a NaN if any of them is one. dim and num_entries are multiples of 32.
void largest_logits_bfloat16(const uint16_t* input, const Word* panels, int64_t* entries, float* logits, int64_t num_tokens,
                             int64_t dim, int64_t num_entries) {
    const Rows tokens(input, num_tokens, dim);
    std::vector<Largest> largest(num_tokens);  // of each, by the entry's place in a panel
    tiles_are_granted();
#pragma omp parallel
    {
        [[maybe_unused]] const Tiles tiles;
        Sums sums;
        std::vector<Largest> mine(num_tokens);
#pragma omp for schedule(dynamic, kPanelsAtOnce)
        for (int64_t panel = 0; panel < num_entries / kPanel; ++panel)
            see(tokens, panels + panel * kTile * dim, panel * kPanel, num_tokens, dim, &sums, mine.data());
#pragma omp critical
        for (int64_t token = 0; token < num_tokens; ++token) largest[token].merge(mine[token]);
    }
    for (int64_t token = 0; token < num_tokens; ++token) {
        const LargestLogit of = largest[token].of_all_lanes();
        entries[token] = of.entry;
        logits[token] = of.logit;
    }
}
}

#endif
