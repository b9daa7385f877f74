// Attention of decodes over pages in place: online softmax (Milakov and Gimelshein 2018), a page at a time. Queries that
// share a KV head are taken up to four at once, so that what is read of the page serves them all.

#include <limits>
#include <utility>
#include <vector>

#include "numbers.h"
#include "operations.h"

namespace {

constexpr int64_t kSums = kLanes;      // of a step: so many do not wait for one another, and fit into registers
constexpr int64_t kWide = kLanes / 4;  // vectors of a value that a step weighs

// Each lane and the one that follows it, of both vectors in their order.
template <size_t... kLane>
inline Floats pairs_added(Floats a, Floats b, std::index_sequence<kLane...>) {
    return __builtin_shufflevector(a, b, (2 * kLane)...) + __builtin_shufflevector(a, b, (2 * kLane + 1)...);
}

// Sums over the lanes of as many vectors, in their order; by halves, so that all of it stays in registers.
template <int64_t kCount = kSums>
inline Floats sums_of(const Floats* vectors) {
    if constexpr (kCount == 1) {
        return *vectors;
    } else {
        const Floats a = sums_of<kCount / 2>(vectors), b = sums_of<kCount / 2>(vectors + kCount / 2);
        return pairs_added(a, b, std::make_index_sequence<kLanes>());
    }
}

// The G query heads of one KV head, D numbers each, filled up with zeros to whole vectors.
template <typename T>
class Decode {
  public:
    Decode(int64_t group_size, int64_t head_dim, int64_t block_size)
        : group_size_(group_size), head_dim_(head_dim), width_((head_dim + kLanes - 1) / kLanes * kLanes),
          num_scores_((block_size + kSums - 1) / kSums * kSums), query_(group_size * width_), sum_(group_size * width_),
          scores_(group_size * num_scores_), maximum_(group_size), mass_(group_size) {}

    // query: [G, D] with a stride between heads; sinks: [G] or null.
    void start(const T* query, int64_t head_stride, float scaling, const float* sinks) {
        for (int64_t g = 0; g < group_size_; ++g) {
            for (int64_t d = 0; d < head_dim_; ++d) query_[g * width_ + d] = load(query[g * head_stride + d]) * scaling;
            maximum_[g] = sinks ? sinks[g] : -std::numeric_limits<float>::infinity();
            mass_[g] = sinks ? 1.0f : 0.0f;
        }
        std::fill(sum_.begin(), sum_.end(), 0.0f);
    }

    // keys, values: the first row of this KV head that counts; rows are `stride` apart. next_keys, next_values: of the
    // page that follows, or null. softcap: 0 for none.
    void add(const T* keys, const T* values, int64_t num_keys, int64_t stride, const T* next_keys, const T* next_values,
             float softcap) {
        by_heads([&]<int64_t kHeads>(int64_t head) {
            score<kHeads>(head, keys, num_keys, stride, head == 0 ? next_keys : nullptr, next_values);
        });
        for (int64_t g = 0; g < group_size_; ++g) weigh(g, num_keys, softcap);
        by_heads([&]<int64_t kHeads>(int64_t head) { sum<kHeads>(head, values, num_keys, stride); });
    }

    void finish(T* output) const {
        for (int64_t g = 0; g < group_size_; ++g)
            for (int64_t d = 0; d < head_dim_; ++d) store(output + g * head_dim_ + d, sum_[g * width_ + d] / mass_[g]);
    }

  private:
    template <typename Step>
    void by_heads(const Step& step) const {
        int64_t head = 0;
        for (; head + 4 <= group_size_; head += 4) step.template operator()<4>(head);
        for (; head + 2 <= group_size_; head += 2) step.template operator()<2>(head);
        for (; head < group_size_; ++head) step.template operator()<1>(head);
    }

    // Rows are read a few at a time and by pieces, in which no processor sees a stream.
    void fetch(const T* rows, int64_t num_rows, int64_t stride) const {
        constexpr int64_t kLine = 64 / sizeof(T);
        for (int64_t r = 0; r < num_rows; ++r)
            for (int64_t d = 0; d < head_dim_; d += kLine) __builtin_prefetch(rows + r * stride + d);
    }

    template <int64_t kHeads>
    void score(int64_t head, const T* keys, int64_t num_keys, int64_t stride, const T* next_keys, const T* next_values) {
        constexpr int64_t kKeys = kSums / kHeads;
        for (int64_t first = 0; first < num_keys; first += kKeys) {
            Floats sums[kSums] = {};
            const T* rows[kKeys];  // the last one again where there are no more: nobody reads that score
            for (int64_t k = 0; k < kKeys; ++k) rows[k] = keys + std::min(first + k, num_keys - 1) * stride;
            if (next_keys != nullptr) {
                fetch(next_keys + first * stride, std::min(kKeys, num_keys - first), stride);
                fetch(next_values + first * stride, std::min(kKeys, num_keys - first), stride);
            }
            const auto multiply = [&](int64_t d, const auto& load_key) {
                Floats query[kHeads];
#pragma GCC unroll 4
                for (int64_t h = 0; h < kHeads; ++h) query[h] = load_floats(query_.data() + (head + h) * width_ + d);
#pragma GCC unroll 16
                for (int64_t k = 0; k < kKeys; ++k) {
                    const Floats key = load_key(rows[k] + d);
#pragma GCC unroll 4
                    for (int64_t h = 0; h < kHeads; ++h) sums[h * kKeys + k] += query[h] * key;
                }
            };
            int64_t d = 0;
            for (; d + kLanes <= head_dim_; d += kLanes) multiply(d, [](const T* key) { return load_floats(key); });
            if (d < head_dim_) multiply(d, [rest = head_dim_ - d](const T* key) { return load_some(key, rest); });
            const Floats scores = sums_of(sums);
            for (int64_t h = 0; h < kHeads; ++h)
                std::memcpy(scores_.data() + (head + h) * num_scores_ + first,
                            reinterpret_cast<const float*>(&scores) + h * kKeys, kKeys * sizeof(float));
        }
    }

    // Turns the scores of a head into weights.
    void weigh(int64_t g, int64_t num_keys, float softcap) {
        float* scores = scores_.data() + g * num_scores_;
        if (softcap != 0.0f)
            for (int64_t key = 0; key < num_keys; ++key) scores[key] = softcap * std::tanh(scores[key] / softcap);
        float highest = maximum_[g], mass = 0.0f;
#pragma omp simd reduction(max : highest)
        for (int64_t key = 0; key < num_keys; ++key) highest = scores[key] > highest ? scores[key] : highest;
#pragma omp simd reduction(+ : mass)
        for (int64_t key = 0; key < num_keys; ++key) {
            const float weight = exponential(scores[key] - highest);
            scores[key] = weight;
            mass += weight;
        }
        const float shrink = std::exp(maximum_[g] - highest);
        maximum_[g] = highest;
        mass_[g] = mass_[g] * shrink + mass;
        if (shrink != 1.0f)
            for (int64_t d = 0; d < width_; ++d) sum_[g * width_ + d] *= shrink;
    }

    template <int64_t kHeads>
    void sum(int64_t head, const T* values, int64_t num_keys, int64_t stride) {
        const auto whole = [](const T* value) { return load_floats(value); };
        int64_t d = 0;
        for (; d + kWide * kLanes <= head_dim_; d += kWide * kLanes)
            sum_at<kHeads, kWide>(head, d, values, num_keys, stride, whole);
        for (; d + kLanes <= head_dim_; d += kLanes) sum_at<kHeads, 1>(head, d, values, num_keys, stride, whole);
        if (d < head_dim_) {
            const auto some = [rest = head_dim_ - d](const T* value) { return load_some(value, rest); };
            sum_at<kHeads, 1>(head, d, values, num_keys, stride, some);
        }
    }

    template <int64_t kHeads, int64_t kVectors, typename Load>
    void sum_at(int64_t head, int64_t d, const T* values, int64_t num_keys, int64_t stride, const Load& load_value) {
        Floats sums[kHeads * kVectors];
        float* targets = sum_.data() + head * width_ + d;
        const float* weights = scores_.data() + head * num_scores_;
#pragma GCC unroll 16
        for (int64_t i = 0; i < kHeads * kVectors; ++i)
            sums[i] = load_floats(targets + i / kVectors * width_ + i % kVectors * kLanes);
        for (int64_t key = 0; key < num_keys; ++key)
#pragma GCC unroll 4
            for (int64_t v = 0; v < kVectors; ++v) {
                const Floats value = load_value(values + key * stride + d + v * kLanes);
#pragma GCC unroll 4
                for (int64_t h = 0; h < kHeads; ++h) sums[h * kVectors + v] += weights[h * num_scores_ + key] * value;
            }
#pragma GCC unroll 16
        for (int64_t i = 0; i < kHeads * kVectors; ++i)
            store_floats(targets + i / kVectors * width_ + i % kVectors * kLanes, sums[i]);
    }

    const int64_t group_size_, head_dim_, width_, num_scores_;
    std::vector<float> query_, sum_, scores_, maximum_, mass_;
};

// query, output [R, H, D], H = num_kv_heads * group_size; keys, values [blocks, block_size, num_kv_heads, D];
// block_tables [R, table_width]; window: 0 for none; sinks [H] or null.
template <typename T>
void attend_decodes(const T* query, T* output, const T* keys, const T* values, const int32_t* block_tables,
                    const int32_t* context_lens, const float* sinks, int64_t num_requests, int64_t table_width,
                    int64_t num_kv_heads, int64_t group_size, int64_t head_dim, int64_t block_size, int64_t window,
                    int64_t query_token_stride, int64_t query_head_stride, float scaling, float softcap) {
    const int64_t row = num_kv_heads * head_dim;
#pragma omp parallel
    {
        Decode<T> decode(group_size, head_dim, block_size);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < num_requests * num_kv_heads; ++task) {
            const int64_t request = task / num_kv_heads, kv_head = task % num_kv_heads, head = kv_head * group_size;
            const int64_t stop = context_lens[request], first = window ? std::max<int64_t>(0, stop - window) : 0;
            decode.start(query + request * query_token_stride + head * query_head_stride, query_head_stride, scaling,
                         sinks ? sinks + head : nullptr);
            const auto start_of = [&](int64_t position) {
                const int64_t block = block_tables[request * table_width + position / block_size];
                return (block * block_size + position % block_size) * row + kv_head * head_dim;
            };
            for (int64_t position = first; position < stop;) {
                const int64_t num_keys = std::min(block_size - position % block_size, stop - position);
                const int64_t start = start_of(position);
                position += num_keys;
                const int64_t next = position < stop ? start_of(position) : -1;
                decode.add(keys + start, values + start, num_keys, row, next < 0 ? nullptr : keys + next,
                           next < 0 ? nullptr : values + next, softcap);
            }
            decode.finish(output + (request * num_kv_heads * group_size + head) * head_dim);
        }
    }
}

}  // namespace

#define FOR_TYPE(T, suffix)                                                                                           \
    void attend_decodes_##suffix(const T* query, T* output, const T* keys, const T* values,                           \
                                 const int32_t* block_tables, const int32_t* context_lens, const float* sinks,        \
                                 int64_t num_requests, int64_t table_width, int64_t num_kv_heads, int64_t group_size, \
                                 int64_t head_dim, int64_t block_size, int64_t window, int64_t query_token_stride,    \
                                 int64_t query_head_stride, float scaling, float softcap) {                           \
        attend_decodes(query, output, keys, values, block_tables, context_lens, sinks, num_requests, table_width,     \
                       num_kv_heads, group_size, head_dim, block_size, window, query_token_stride, query_head_stride, \
                       scaling, softcap);                                                                             \
    }

extern "C" {
FOR_TYPE(bfloat16, bfloat16)
FOR_TYPE(float, float32)
}
