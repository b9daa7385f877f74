// The largest logit of each token, of an output head of which most is never multiplied in bfloat16: found in half of the
// operations and of the memory, and the same to the bit.
//
// Beside its panels the head is kept in 8 bits. Products of these are wrong by no more than a bound that is known for each
// token and entry (Cauchy and Schwarz: the norm of what rounding left out, times that of what it would be multiplied by), so
// an entry whose upper bound is below the lower bound of another is not the largest. What remains, some tens of 262,144, is
// multiplied by its panels as `largest_logits_bfloat16` does. Where that is too many all entries are.

#include "processor.h"

#if defined(METRONOME_IS_AVX512) && defined(__AVX512VNNI__)

#include <cfloat>
#include <vector>

#include "eight_bits.h"
#include "largest.h"
#include "operations.h"
#include "rows.h"

namespace {

constexpr int64_t kGroup = 4;      // numbers along K that one instruction takes
constexpr int64_t kRowsAtOnce = 8;
constexpr int64_t kPanelsAtOnce = 32;  // that a thread takes, as in head.cpp
constexpr int32_t kOffset = 128;       // entries are kept without a sign
constexpr int64_t kFetchedAhead = 4096;  // bytes
constexpr size_t kMostCandidates = 8192;   // of a token on the way, and half of them in the end, which cost what a pass by panels does

// A token beside its numbers in 8 bits. `offset`: what products are too large by, since entries are.
struct Token {
    float step, lost, norm;
    int32_t offset;
};

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
    void add(__mmask16 mask, __m512 lower, __m512 upper, int32_t first_entry) {
        if (are_too_many_) return;
        best_ = std::max(best_, _mm512_mask_reduce_max_ps(mask, lower));
        alignas(64) float uppers[kTile];
        _mm512_store_ps(uppers, upper);
        for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
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
void to_bytes(const uint16_t* input, int64_t count, int64_t dim, Floats* columns, int8_t* bytes, Token* tokens) {
    std::fill_n(columns, dim, Floats{});
    for (int64_t t = 0; t < count; ++t)
        for (int64_t k = 0; k < dim; ++k) columns[k][t] = load(bfloat16{input[t * dim + k]});
    turn(columns, dim);
    Bounds bounds;
    round_to_steps(columns, dim, &bounds);
    // What sums in floats may be wrong by, here and there, as a part of the product of the norms.
    const float rounding = static_cast<float>(dim + 64) * 0x1p-22f;
    for (int64_t t = 0; t < count; ++t) {
        int32_t sum = 0;
        for (int64_t k = 0; k < dim; ++k) sum += bytes[t * dim + k] = static_cast<int8_t>(columns[k][t]);
        tokens[t] = {bounds.step[t], bounds.lost[t] + rounding * bounds.norm[t], bounds.norm[t] + bounds.lost[t], kOffset * sum};
    }
}

// Up to eight tokens by 32 entries.
template <int64_t kRows = kRowsAtOnce>
void multiply_bytes(const int8_t* rows, const Token* tokens, int64_t num_rows, const uint8_t* panel, const char* ahead,
                    int64_t num_lines, int64_t dim, __m512i (*sums)[2]) {
    if constexpr (kRows > 1)
        if (num_rows < kRows) return multiply_bytes<kRows - 1>(rows, tokens, num_rows, panel, ahead, num_lines, dim, sums);
    __m512i low[kRows], high[kRows];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) low[r] = high[r] = _mm512_set1_epi32(-tokens[r].offset);
    const int64_t num_groups = dim / kGroup;
    for (int64_t group = 0, due = 0; group < num_groups; ++group, panel += kPanel * kGroup) {
        // A few at a time, as in steps_vectors.h.
        for (due += num_lines; due >= num_groups; due -= num_groups, ahead += 64) prefetch(ahead);
        const __m512i first = _mm512_load_si512(panel), second = _mm512_load_si512(panel + kTile * kGroup);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
            int32_t numbers;
            std::memcpy(&numbers, rows + r * dim + group * kGroup, sizeof(numbers));
            low[r] = _mm512_dpbusd_epi32(low[r], first, _mm512_set1_epi32(numbers));
            high[r] = _mm512_dpbusd_epi32(high[r], second, _mm512_set1_epi32(numbers));
        }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] = low[r];
        sums[r][1] = high[r];
    }
}

// Products of a token by sixteen entries from `first_entry` on.
inline void see(__m512i sums, const Token& token, const Bounds& bounds, int64_t first_entry, Candidates* candidates) {
    const __m512 step = _mm512_mul_ps(_mm512_load_ps(bounds.step), _mm512_set1_ps(token.step));
    const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), step);
    const __m512 lost_of_entry = _mm512_mul_ps(_mm512_load_ps(bounds.lost), _mm512_set1_ps(token.norm));
    const __m512 error = _mm512_fmadd_ps(_mm512_load_ps(bounds.norm), _mm512_set1_ps(token.lost), lost_of_entry);
    const __m512 upper = _mm512_add_ps(product, error);
    // What is no number may be the largest.
    const __mmask16 may_be = _mm512_cmp_ps_mask(upper, _mm512_set1_ps(candidates->least()), _CMP_NLT_UQ);
    if (may_be != 0) candidates->add(may_be, _mm512_sub_ps(product, error), upper, static_cast<int32_t>(first_entry));
}

// The logits of up to sixteen entries, that of the last again where there are fewer, summed as a step of a product sums them.
__m512 exactly(const RowNumber* row, const Word* panels, const Candidate* candidates, int64_t count, int64_t dim) {
    alignas(64) Word words[kTile][kTile];
    __m512 sums = _mm512_setzero_ps();
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
        largest.see(exactly(row, panels, candidates.data() + first, count, dim), _mm512_load_si512(entries));
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
        const auto columns = aligned<Floats>(dim);
#pragma omp for
        for (int64_t tile = 0; tile < num_entries / kTile; ++tile) {
            const int64_t half = tile % 2;
            const Word* panel = panels + tile / 2 * kTile * dim + half * kTile * kTile;
            for (int64_t k = 0; k < dim; k += 2) {
                const __m512i pairs = _mm512_load_si512(panel + k / kStep * 2 * kTile * kTile + k % kStep / 2 * kTile);
                columns[k] = (Floats)_mm512_slli_epi32(pairs, 16);
                columns[k + 1] = (Floats)_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000)));
            }
            turn(columns.get(), dim);
            round_to_steps(columns.get(), dim, reinterpret_cast<Bounds*>(bounds) + tile);
            uint8_t* target = bytes + tile / 2 * kPanel * dim + half * kTile * kGroup;
            for (int64_t k = 0; k < dim; k += kGroup, target += kPanel * kGroup) {
                __m512i group = _mm512_setzero_si512();
                for (int64_t i = kGroup - 1; i >= 0; --i)
                    group = _mm512_or_si512(_mm512_slli_epi32(group, 8),
                                            _mm512_add_epi32(_mm512_cvtps_epi32((__m512)columns[k + i]), _mm512_set1_epi32(kOffset)));
                _mm512_store_si512(target, group);
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
        const auto columns = aligned<Floats>(dim);
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
                __m512i sums[kRowsAtOnce][2];
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
