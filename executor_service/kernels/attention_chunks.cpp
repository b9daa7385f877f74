// Attention of prefill chunks over pages, as products of panels: FlashAttention (Dao et al. 2022) for a CPU. All keys and
// values that a chunk sees are packed once; then blocks of 32 queries go over them, a few hundred keys at a time, with an
// online softmax. Queries that share a KV head are rows of the same product.

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include <limits>
#include <vector>

#include "operations.h"
#include "steps.h"

namespace {

constexpr int64_t kKeysAtOnce = 256;  // keys whose scores a block of queries holds

// Where the keys or values of one request and KV head lie, from the first that any token of the chunk sees.
struct Pages {
    const uint16_t* slots;  // of this KV head
    const int32_t* block_table;
    int64_t block_size, row;  // row: from one slot to the next
    int64_t first_key, stop_key;

    // Null where nobody looks: whose page that is now is not known.
    const uint16_t* at(int64_t position) const {
        if (position < first_key || position >= stop_key) return nullptr;
        const int64_t slot = block_table[position / block_size] * block_size + position % block_size;
        return slots + slot * row;
    }
};

// 32 keys as a panel [D / 32][2][16][16]: products of queries by it are scores.
void pack_keys(const Pages& pages, int64_t position, int64_t head_dim, Word* panel) {
    for (int64_t key = 0; key < kPanel; ++key) {
        const uint16_t* source = pages.at(position + key);
        Word* target = panel + key / kTile * kTile * kTile + key % kTile;
        for (int64_t d = 0; d < head_dim; d += 2) {
            Word pair = 0;
            if (source != nullptr) std::memcpy(&pair, source + d, sizeof(pair));
            target[d / kStep * 2 * kTile * kTile + d % kStep / 2 * kTile] = pair;
        }
    }
}

// The values of 32 keys as one step of panels over keys, [2][16][16] for each 32 of D, `panel_words` apart: products of
// weights by them are sums over these keys.
void pack_values(const Pages& pages, int64_t position, int64_t head_dim, Word* step, int64_t panel_words) {
    for (int64_t key = 0; key < kPanel; key += 2) {
        const uint16_t *even = pages.at(position + key), *odd = pages.at(position + key + 1);
        for (int64_t d = 0; d < head_dim; ++d) {
            const Word low = even == nullptr ? 0 : even[d], high = odd == nullptr ? 0 : odd[d];
            step[d / kPanel * panel_words + d % kPanel / kTile * kTile * kTile + key / 2 * kTile + d % kTile] = low | high << 16;
        }
    }
}

// 32 rows, each a query head of a token, on their way over the keys.
class QueryBlock {
  public:
    explicit QueryBlock(int64_t head_dim)
        : head_dim_(head_dim), query_(aligned<RowNumber>(kPanel * head_dim)), weights_(aligned<RowNumber>(kPanel * kKeysAtOnce)),
          sum_(kPanel * head_dim), scores_(kPanel * kKeysAtOnce) {
        // Tiles multiply all rows; what is in those that nobody adds must be numbers.
        std::fill_n(query_.get(), kPanel * head_dim, RowNumber{0});
        std::fill_n(weights_.get(), kPanel * kKeysAtOnce, RowNumber{0});
    }

    void start() {
        std::fill(sum_.begin(), sum_.end(), 0.0f);
        num_rows_ = 0;
    }

    // A row of D numbers that sees the keys [first_key, stop_key). sink: a score without a value, or null.
    void add_row(const uint16_t* query, int64_t first_key, int64_t stop_key, const float* sink) {
        const int64_t r = num_rows_++;
        to_row(query, query_.get() + r * head_dim_, head_dim_);
        first_key_[r] = first_key;
        stop_key_[r] = stop_key;
        maximum_[r] = sink ? *sink : -std::numeric_limits<float>::infinity();
        mass_[r] = sink ? 1.0f : 0.0f;
    }

    int64_t first_key() const { return *std::min_element(first_key_, first_key_ + num_rows_); }
    int64_t stop_key() const { return *std::max_element(stop_key_, stop_key_ + num_rows_); }

    // The keys [start, start + num_keys), num_keys a multiple of 32. key_panels: the first of theirs. value_steps: the
    // first of theirs in the first panel, others are `panel_words` apart.
    void attend(int64_t start, int64_t num_keys, const Word* key_panels, const Word* value_steps, int64_t panel_words,
                float scaling, float softcap) {
        Sums sums;
        for (int64_t key = 0; key < num_keys; key += kPanel) {
            product(query_.get(), head_dim_, key_panels + key * head_dim_ / 2, &sums);
            for (int64_t r = 0; r < num_rows_; ++r)
                for (int64_t k = 0; k < kPanel; ++k) scores_[r * kKeysAtOnce + key + k] = sums.of[r][k] * scaling;
        }
        for (int64_t r = 0; r < num_rows_; ++r) weigh(r, start, num_keys, softcap);
        for (int64_t d = 0; d < head_dim_; d += kPanel) {
            product(weights_.get(), num_keys, value_steps + d / kPanel * panel_words, &sums);
            for (int64_t r = 0; r < num_rows_; ++r)
                for (int64_t i = 0; i < kPanel; ++i) sum_[r * head_dim_ + d + i] += sums.of[r][i];
        }
    }

    void finish(int64_t r, bfloat16* output) const {
        for (int64_t d = 0; d < head_dim_; ++d) store(output + d, sum_[r * head_dim_ + d] / mass_[r]);
    }

  private:
    void product(const RowNumber* rows, int64_t dim, const Word* panel, Sums* sums) const {
        multiply(rows, rows + kTile * dim, num_rows_, panel, true, Ahead{}, dim, sums);
    }

    // Turns the scores of a row into weights, 0 for keys that it does not see.
    void weigh(int64_t r, int64_t start, int64_t num_keys, float softcap) {
        float* scores = scores_.data() + r * kKeysAtOnce;
        const int64_t first = std::clamp<int64_t>(first_key_[r] - start, 0, num_keys);
        const int64_t stop = std::clamp<int64_t>(stop_key_[r] - start, first, num_keys);
        RowNumber* weights = weights_.get() + r * num_keys;
        std::fill_n(weights, first, RowNumber{0});
        std::fill_n(weights + stop, num_keys - stop, RowNumber{0});
        if (first == stop) return;
        if (softcap != 0.0f)
            for (int64_t key = first; key < stop; ++key) scores[key] = softcap * std::tanh(scores[key] / softcap);
        float highest = maximum_[r], mass = 0.0f;
#pragma omp simd reduction(max : highest)
        for (int64_t key = first; key < stop; ++key) highest = scores[key] > highest ? scores[key] : highest;
#pragma omp simd reduction(+ : mass)
        for (int64_t key = first; key < stop; ++key) {
            const float weight = exponential(scores[key] - highest);
            scores[key] = weight;
            mass += weight;
        }
        to_row(scores + first, weights + first, stop - first);
        const float shrink = std::exp(maximum_[r] - highest);
        maximum_[r] = highest;
        mass_[r] = mass_[r] * shrink + mass;
        if (shrink != 1.0f)
            for (int64_t d = 0; d < head_dim_; ++d) sum_[r * head_dim_ + d] *= shrink;
    }

    const int64_t head_dim_;
    int64_t num_rows_ = 0;
    std::unique_ptr<RowNumber[], Free> query_, weights_;
    std::vector<float> sum_, scores_;
    int64_t first_key_[kPanel], stop_key_[kPanel];
    float maximum_[kPanel], mass_[kPanel];
};

}  // namespace

extern "C" {

// query, output [T, H, D], H = num_kv_heads * group_size, D a multiple of 32; keys, values [blocks, block_size,
// num_kv_heads, D]; block_tables [R, table_width]; of request r the tokens [query_starts[r], query_starts[r + 1]) of T, the
// last of its context; window: 0 for none; sinks [H] or null.
void attend_chunks_bfloat16(const int64_t* query_starts, const bfloat16* query, bfloat16* output, const bfloat16* keys,
                            const bfloat16* values, const int32_t* block_tables, const int32_t* context_lens,
                            const float* sinks, int64_t num_requests, int64_t table_width, int64_t num_kv_heads,
                            int64_t group_size, int64_t head_dim, int64_t block_size, int64_t window,
                            int64_t query_token_stride, int64_t query_head_stride, float scaling, float softcap) {
    static thread_local Workspace<Word> key_space, value_space;
    tiles_are_granted();
    for (int64_t task = 0; task < num_requests * num_kv_heads; ++task) {
        const int64_t request = task / num_kv_heads, head = task % num_kv_heads * group_size;
        const int64_t first_token = query_starts[request], num_tokens = query_starts[request + 1] - first_token;
        const int64_t context_len = context_lens[request], first_position = context_len - num_tokens;
        const int64_t first_key = window ? std::max<int64_t>(0, first_position - window + 1) : 0;
        const int64_t start = first_key / kPanel * kPanel;
        const int64_t num_keys = (context_len - start + kPanel - 1) / kPanel * kPanel;
        const int64_t panel_words = num_keys * kPanel / 2, num_rows = num_tokens * group_size;
        const int64_t offset = task % num_kv_heads * head_dim, row = num_kv_heads * head_dim;
        const Pages key_pages{bits_of(keys + offset), block_tables + request * table_width, block_size, row,
                               first_key, context_len};
        const Pages value_pages{bits_of(values + offset), block_tables + request * table_width, block_size, row,
                               first_key, context_len};
        Word* key_panels = key_space.of(num_keys * head_dim / 2);
        Word* value_panels = value_space.of(num_keys * head_dim / 2);
#pragma omp parallel
        {
            [[maybe_unused]] const Tiles tiles;
            QueryBlock block(head_dim);
#pragma omp for schedule(static)
            for (int64_t key = 0; key < num_keys; key += kPanel) {
                pack_keys(key_pages, start + key, head_dim, key_panels + key * head_dim / 2);
                pack_values(value_pages, start + key, head_dim, value_panels + key * kTile, panel_words);
            }
#pragma omp for schedule(dynamic)
            for (int64_t first = 0; first < num_rows; first += kPanel) {
                const int64_t count = std::min(kPanel, num_rows - first);
                const auto token_of = [&](int64_t r) { return (first + r) / group_size; };
                const auto head_of = [&](int64_t r) { return head + (first + r) % group_size; };
                block.start();
                for (int64_t r = 0; r < count; ++r) {
                    const int64_t stop_key = first_position + token_of(r) + 1;
                    const int64_t source = (first_token + token_of(r)) * query_token_stride + head_of(r) * query_head_stride;
                    block.add_row(bits_of(query + source), window ? std::max<int64_t>(0, stop_key - window) : 0, stop_key,
                                  sinks ? sinks + head_of(r) : nullptr);
                }
                const int64_t stop = (block.stop_key() - start + kPanel - 1) / kPanel * kPanel;
                for (int64_t key = (block.first_key() - start) / kPanel * kPanel; key < stop; key += kKeysAtOnce)
                    block.attend(start + key, std::min(kKeysAtOnce, stop - key), key_panels + key * head_dim / 2,
                                 value_panels + key * kTile, panel_words, scaling, softcap);
                for (int64_t r = 0; r < count; ++r) {
                    const int64_t target = (first_token + token_of(r)) * num_kv_heads * group_size + head_of(r);
                    block.finish(r, output + target * head_dim);
                }
            }
        }
    }
}
}

#endif
