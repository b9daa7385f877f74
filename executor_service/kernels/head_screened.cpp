// The largest logit of each token, of an output head of which most is never multiplied in bfloat16: found in half of the
// operations and of the memory, and the same to the bit.
//
// Beside its panels the head is kept in 8 bits. Products of these are wrong by no more than a bound that is known for each
// token and entry (Cauchy and Schwarz: the norm of what rounding left out, times that of what it would be multiplied by), so
// an entry whose upper bound is below the lower bound of another is not the largest. What remains, some tens of 262,144, is
// multiplied by its panels as `largest_logits_bfloat16` does. Where that is too many all entries are.

#include "processor.h"

#ifdef METRONOME_MULTIPLIES_BYTES

#include <cfloat>
#include <vector>

#include "largest.h"
#include "operations.h"
#include "rows.h"
#include "steps_bytes.h"

namespace {

constexpr int64_t kPanelsAtOnce = 32;  // that a thread takes, as in head.cpp
constexpr int64_t kFetchedAhead = 4096;  // bytes
// Of a token on the way, and half of them in the end, which cost what a pass by panels does.
constexpr size_t kMostCandidates = 8192;

struct Candidate {
    float upper;
    int32_t entry;
};

// The entries that may be the largest of a token, and a lower bound for that.
class Candidates {
  public:
    // The least that an upper bound may be: logits are compared in bfloat16, so what is within one of its steps is equal.
    float least() const { return best_ - std::fabs(best_) / 128 - FLT_MIN; }
    bool are_too_many() const { return are_too_many_; }
    const std::vector<Candidate>& all() const { return all_; }

    // Of sixteen entries from `first_entry` on those of the mask.
    void add(Mask mask, Sixteen lower, Sixteen upper, int32_t first_entry) {
        if (are_too_many_) return;
        best_ = std::max(best_, greatest(mask, lower));
        alignas(64) float uppers[kTile];
        store(uppers, upper);
        for (unsigned rest = bits_of(mask); rest != 0; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            all_.push_back({uppers[lane], first_entry + lane});
        }
        if (all_.size() > kMostCandidates) prune();
    }
    void merge(const Candidates& other) {
        best_ = std::max(best_, other.best_);
        all_.insert(all_.end(), other.all_.begin(), other.all_.end());
        are_too_many_ |= other.are_too_many_;
    }
    void prune() {
        std::erase_if(all_, [least = least()](const Candidate& one) { return one.upper < least; });
        are_too_many_ |= all_.size() > kMostCandidates / 2;
    }
    // What is left when all were seen, by entry.
    void settle() {
        prune();
        std::sort(all_.begin(), all_.end(), [](const Candidate& a, const Candidate& b) { return a.entry < b.entry; });
    }

  private:
    std::vector<Candidate> all_;
    float best_ = -std::numeric_limits<float>::infinity();
    bool are_too_many_ = false;
};

// Up to sixteen tokens [count, dim] in 8 bits.
void to_bytes(const uint16_t* input, int64_t count, int64_t dim, Sixteen* columns, int8_t* bytes, Token* tokens) {
    auto* lanes = reinterpret_cast<float(*)[kTile]>(columns);
    std::fill_n(columns, dim, all(0.0f));
    for (int64_t t = 0; t < count; ++t)
        for (int64_t k = 0; k < dim; ++k) lanes[k][t] = load(bfloat16{input[t * dim + k]});
    turn(columns, dim);
    Bounds bounds;
    round_to_steps<TokenSize>(columns, dim, &bounds);
    // What sums in floats may be wrong by, here and there, as a part of the product of the norms.
    const float rounding = static_cast<float>(dim + 64) * 0x1p-22f;
    for (int64_t t = 0; t < count; ++t) {
        int32_t sum = 0;
        for (int64_t k = 0; k < dim; ++k) sum += bytes[t * dim + k] = static_cast<int8_t>(lanes[k][t]);
        tokens[t] = {bounds.step[t], bounds.lost[t] + rounding * bounds.norm[t], bounds.norm[t] + bounds.lost[t], kOffset * sum};
    }
}

// Products of a token by sixteen entries from `first_entry` on.
inline void see(SixteenInts sums, const Token& token, const Bounds& bounds, int64_t first_entry, Candidates* candidates) {
    const Sixteen step = sixteen(bounds.step) * all(token.step);
    const Sixteen product = floats(sums) * step;
    const Sixteen lost_of_entry = sixteen(bounds.lost) * all(token.norm);
    const Sixteen error = sum_of_product(sixteen(bounds.norm), all(token.lost), lost_of_entry);
    const Sixteen upper = product + error;
    // What is no number may be the largest.
    const Mask may_be = not_less(upper, all(candidates->least()));
    if (any(may_be)) candidates->add(may_be, product - error, upper, static_cast<int32_t>(first_entry));
}

// The logits of up to sixteen entries, that of the last again where there are fewer, summed as a step of a product sums them.
Sixteen exactly(const RowNumber* row, const Word* panels, const Candidate* candidates, int64_t count, int64_t dim) {
    alignas(64) Word words[kTile][kTile];
    Sixteen sums = all(0.0f);
    for (int64_t step = 0; step < dim; step += kStep) {
        for (int64_t lane = 0; lane < kTile; ++lane) {
            const int64_t entry = candidates[std::min(lane, count - 1)].entry;
            const int64_t panel = entry / kPanel, column = entry % kPanel;
            const Word* of_step = panels + panel * kTile * dim + step / kStep * 2 * kTile * kTile +
                                  column / kTile * kTile * kTile + column % kTile;
            for (int64_t k = 0; k < kTile; ++k) words[k][lane] = of_step[k * kTile];
        }
        for (int64_t k = 0; k < kTile; ++k) sums = Columns(words[k]).add_to(sums, row + step + 2 * k);
    }
    return sums;
}

// `candidates` ascend by entry.
LargestLogit largest_of(const RowNumber* row, const Word* panels, const std::vector<Candidate>& candidates, int64_t dim) {
    Largest largest;
    for (size_t first = 0; first < candidates.size(); first += kTile) {
        const int64_t count = std::min<int64_t>(kTile, candidates.size() - first);
        alignas(64) int32_t entries[kTile];
        for (int64_t lane = 0; lane < kTile; ++lane) entries[lane] = candidates[first + std::min(lane, count - 1)].entry;
        largest.see(exactly(row, panels, candidates.data() + first, count, dim), sixteen(entries));
    }
    return largest.of_all_lanes();
}

// The largest logits of some tokens, of all entries.
void by_panels(const uint16_t* input, const Word* panels, int64_t* entries, float* logits, const std::vector<int64_t>& tokens,
               int64_t dim, int64_t num_entries) {
    if (tokens.empty()) return;
    const int64_t count = tokens.size();
    std::vector<uint16_t> rows(count * dim);
    std::vector<int64_t> their_entries(count);
    std::vector<float> their_logits(count);
    for (int64_t i = 0; i < count; ++i) std::copy_n(input + tokens[i] * dim, dim, rows.data() + i * dim);
    largest_logits_bfloat16(rows.data(), panels, their_entries.data(), their_logits.data(), count, dim, num_entries);
    for (int64_t i = 0; i < count; ++i) {
        entries[tokens[i]] = their_entries[i];
        logits[tokens[i]] = their_logits[i];
    }
}

}  // namespace

extern "C" {

// The head [num_entries, dim] in 8 bits, of its packed weight: bytes [num_entries / 32][dim / 4][32][4] and bounds
// [num_entries / 16][3][16]. dim and num_entries are multiples of 32.
void pack_screen_bfloat16(const Word* panels, uint8_t* bytes, float* bounds, int64_t num_entries, int64_t dim) {
#pragma omp parallel
    {
        const auto columns = aligned<Sixteen>(dim);
#pragma omp for
        for (int64_t tile = 0; tile < num_entries / kTile; ++tile) {
            const int64_t half = tile % 2;
            const Word* panel = panels + tile / 2 * kTile * dim + half * kTile * kTile;
            for (int64_t k = 0; k < dim; k += 2) {
                const SixteenInts pairs = sixteen_pairs(panel + k / kStep * 2 * kTile * kTile + k % kStep / 2 * kTile);
                columns[k] = first_of(pairs);
                columns[k + 1] = second_of(pairs);
            }
            turn(columns.get(), dim);
            round_to_steps(columns.get(), dim, reinterpret_cast<Bounds*>(bounds) + tile);
            uint8_t* target = bytes + tile / 2 * kPanel * dim + half * bytes_to_second_half(dim);
            for (int64_t k = 0; k < dim; k += kGroup, target += kBytesToNextGroup) {
                SixteenInts group = all(0);
                for (int64_t i = kGroup - 1; i >= 0; --i) group = united(shifted<8>(group), added(ints(columns[k + i]), all(kOffset)));
                store_group(target, group, dim);
            }
        }
    }
}

// As `largest_logits_bfloat16`, by the packed head and what `pack_screen_bfloat16` made of it.
void screened_largest_logits_bfloat16(const uint16_t* input, const Word* panels, const uint8_t* bytes, const float* bounds,
                                      int64_t* entries, float* logits, int64_t num_tokens, int64_t dim, int64_t num_entries) {
    static thread_local Workspace<int8_t> space;
    const Rows rows(input, num_tokens, dim);
    int8_t* row_bytes = space.of(num_tokens * dim);
    std::vector<Token> tokens(num_tokens);
    std::vector<Candidates> candidates(num_tokens);
    const int64_t num_times = (num_tokens + kRowsAtOnce - 1) / kRowsAtOnce, num_lines = kPanel * dim / 64;
#pragma omp parallel
    {
        const auto columns = aligned<Sixteen>(dim);
#pragma omp for
        for (int64_t first = 0; first < num_tokens; first += kTile)
            to_bytes(input + first * dim, std::min(kTile, num_tokens - first), dim, columns.get(), row_bytes + first * dim,
                     tokens.data() + first);
        std::vector<Candidates> mine(num_tokens);
#pragma omp for schedule(dynamic, kPanelsAtOnce) nowait
        for (int64_t panel = 0; panel < num_entries / kPanel; ++panel) {
            const uint8_t* entry_bytes = bytes + panel * kPanel * dim;
            const Bounds* of_tiles = reinterpret_cast<const Bounds*>(bounds) + panel * 2;
            for (int64_t time = 0; time < num_times; ++time) {
                const int64_t first = time * kRowsAtOnce, count = std::min(kRowsAtOnce, num_tokens - first);
                // All of a panel's tokens fetch the panel that follows, or the only ones what soon follows.
                const int64_t line = time * num_lines / num_times, stop = (time + 1) * num_lines / num_times;
                const int64_t distance = num_times == 1 ? kFetchedAhead : kPanel * dim + line * 64;
                SixteenInts sums[kRowsAtOnce][2];
                multiply_bytes(row_bytes + first * dim, tokens.data() + first, count, entry_bytes,
                               reinterpret_cast<const char*>(entry_bytes) + distance, stop - line, dim, sums);
                for (int64_t r = 0; r < count; ++r)
                    for (int64_t half = 0; half < 2; ++half)
                        see(sums[r][half], tokens[first + r], of_tiles[half], panel * kPanel + half * kTile, &mine[first + r]);
            }
        }
#pragma omp critical
        for (int64_t token = 0; token < num_tokens; ++token) candidates[token].merge(mine[token]);
#pragma omp barrier
#pragma omp for schedule(dynamic)
        for (int64_t token = 0; token < num_tokens; ++token) {
            candidates[token].settle();
            if (candidates[token].are_too_many()) continue;
            const RowNumber* row = rows.tile(token / kTile) + token % kTile * dim;
            const LargestLogit largest = largest_of(row, panels, candidates[token].all(), dim);
            entries[token] = largest.entry;
            logits[token] = largest.logit;
        }
    }
    std::vector<int64_t> rest;
    for (int64_t token = 0; token < num_tokens; ++token)
        if (candidates[token].are_too_many()) rest.push_back(token);
    by_panels(input, panels, entries, logits, rest, dim, num_entries);
}
}

#endif
