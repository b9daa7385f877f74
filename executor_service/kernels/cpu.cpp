// The operations of a forward pass that torch has only as chains of small ones, or only over gathered copies:
// storing keys and values in their slots, attention of decodes over pages in place, normalisation, rotation, gating, and
// all that stands between a layer's first product and its attention.
//
// Plain C functions over raw memory, so that the library depends on no version of torch and compiles in seconds; cpu.py
// declares them. Sums are in float32 whatever the type of the model. Threads are OpenMP's, those that torch uses. No loop
// assumes that numbers are finite: what a faulty request computes has to stay visible in its own logits.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

struct bfloat16 {
    uint16_t bits;
};

inline float load(float value) { return value; }
inline float load(bfloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline void store(float* target, float value) { *target = value; }
inline void store(bfloat16* target, float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    target->bits = static_cast<uint16_t>(value != value ? 0x7fc0 : nearest_even);
}

template <typename T>
inline float rounded(float value) {
    T result;
    store(&result, value);
    return load(result);
}

// Work below this many numbers is left to one thread: some ten microseconds, in which others may have something better to
// do than to wait for the end of it.
constexpr int64_t kSerial = 64 * 1024;

// exp as a polynomial (Cephes), since compilers do not vectorise the library's without giving up NaN. Error: 2 units in
// the last place; beyond 87 on either side it stays at that value, and what is not finite becomes a NaN. The clamp works
// on bits: as a comparison it would be compiled into two more paths through every caller.
inline float exponential(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const auto magnitude = std::min(static_cast<int32_t>(bits & 0x7fffffff), std::bit_cast<int32_t>(87.0f));
    const auto clamped = std::bit_cast<float>(static_cast<uint32_t>(magnitude) | (bits & 0x80000000));
    const float n = std::floor(clamped * 1.44269504f + 0.5f);
    const float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
    return p * std::bit_cast<float>(exponent) + (x - x);  // 0, or NaN
}

template <typename T>
void write_slots(T* keys, T* values, const T* new_keys, const T* new_values, const int64_t* slots, int64_t num_tokens,
                 int64_t num_heads, int64_t head_dim, int64_t key_token_stride, int64_t key_head_stride,
                 int64_t value_token_stride, int64_t value_head_stride) {
    const int64_t row = num_heads * head_dim;
#pragma omp parallel for if (num_tokens * row > kSerial)
    for (int64_t token = 0; token < num_tokens; ++token) {
        for (int64_t head = 0; head < num_heads; ++head) {
            const int64_t target = slots[token] * row + head * head_dim;
            std::copy_n(new_keys + token * key_token_stride + head * key_head_stride, head_dim, keys + target);
            std::copy_n(new_values + token * value_token_stride + head * value_head_stride, head_dim, values + target);
        }
    }
}

// Online softmax (Milakov and Gimelshein 2018), a page at a time, for the G query heads that share a KV head. Four keys
// are taken at once: their sums do not wait for one another, and what is read once serves four times.
template <typename T>
class Decode {
  public:
    Decode(int64_t group_size, int64_t head_dim, int64_t block_size)
        : group_size_(group_size), head_dim_(head_dim), num_rows_((block_size + 3) / 4 * 4), query_(group_size * head_dim),
          sum_(group_size * head_dim), rows_(num_rows_ * head_dim), scores_(group_size * num_rows_),
          maximum_(group_size), mass_(group_size) {}

    // query: [G, D] with a stride between heads; sinks: [G] or null.
    void start(const T* query, int64_t head_stride, float scaling, const float* sinks) {
        for (int64_t g = 0; g < group_size_; ++g) {
            for (int64_t d = 0; d < head_dim_; ++d) query_[g * head_dim_ + d] = load(query[g * head_stride + d]) * scaling;
            maximum_[g] = sinks ? sinks[g] : -std::numeric_limits<float>::infinity();
            mass_[g] = sinks ? 1.0f : 0.0f;
        }
        std::fill(sum_.begin(), sum_.end(), 0.0f);
    }

    // keys, values: the first row of this KV head that counts; rows are `stride` apart. softcap: 0 for none.
    void add(const T* keys, const T* values, int64_t num_keys, int64_t stride, float softcap) {
        to_float(keys, num_keys, stride);
        for (int64_t g = 0; g < group_size_; ++g) {
            float* scores = scores_.data() + g * num_rows_;
            for (int64_t key = 0; key < num_keys; key += 4) dot_four(query_.data() + g * head_dim_, row(key), scores + key);
            if (softcap != 0.0f)
                for (int64_t key = 0; key < num_keys; ++key) scores[key] = softcap * std::tanh(scores[key] / softcap);
            weigh(scores, num_keys, g);
        }
        to_float(values, num_keys, stride);
        for (int64_t g = 0; g < group_size_; ++g)
            for (int64_t key = 0; key < num_keys; key += 4)
                add_four(sum_.data() + g * head_dim_, row(key), scores_.data() + g * num_rows_ + key);
    }

    void finish(T* output) const {
        for (int64_t g = 0; g < group_size_; ++g)
            for (int64_t d = 0; d < head_dim_; ++d) store(output + g * head_dim_ + d, sum_[g * head_dim_ + d] / mass_[g]);
    }

  private:
    const float* row(int64_t key) const { return rows_.data() + key * head_dim_; }

    // Rows that fill up the last four are zero, so that nothing of other requests reaches a sum.
    void to_float(const T* source, int64_t num_keys, int64_t stride) {
        for (int64_t key = 0; key < num_keys; ++key) {
            float* target = rows_.data() + key * head_dim_;
#pragma omp simd
            for (int64_t d = 0; d < head_dim_; ++d) target[d] = load(source[key * stride + d]);
        }
        const int64_t filled = (num_keys + 3) / 4 * 4;
        std::fill(rows_.begin() + num_keys * head_dim_, rows_.begin() + filled * head_dim_, 0.0f);
    }

    // Turns scores into weights, 0 for those that fill up the last four.
    void weigh(float* scores, int64_t num_keys, int64_t g) {
        float highest = maximum_[g];
        for (int64_t key = 0; key < num_keys; ++key) highest = scores[key] > highest ? scores[key] : highest;
        const float shrink = std::exp(maximum_[g] - highest);
        float mass = 0.0f;
        for (int64_t key = 0; key < num_keys; ++key) mass += scores[key] = exponential(scores[key] - highest);
        for (int64_t key = num_keys; key % 4; ++key) scores[key] = 0.0f;
        maximum_[g] = highest;
        mass_[g] = mass_[g] * shrink + mass;
        if (shrink != 1.0f)
            for (int64_t d = 0; d < head_dim_; ++d) sum_[g * head_dim_ + d] *= shrink;
    }

    void dot_four(const float* query, const float* rows, float* scores) const {
        const int64_t dim = head_dim_;
        const float *r0 = rows, *r1 = rows + dim, *r2 = rows + 2 * dim, *r3 = rows + 3 * dim;
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
        for (int64_t d = 0; d < dim; ++d) {
            s0 += query[d] * r0[d];
            s1 += query[d] * r1[d];
            s2 += query[d] * r2[d];
            s3 += query[d] * r3[d];
        }
        scores[0] = s0, scores[1] = s1, scores[2] = s2, scores[3] = s3;
    }

    void add_four(float* target, const float* rows, const float* weights) const {
        const int64_t dim = head_dim_;
        const float *r0 = rows, *r1 = rows + dim, *r2 = rows + 2 * dim, *r3 = rows + 3 * dim;
        const float w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) target[d] += w0 * r0[d] + w1 * r1[d] + w2 * r2[d] + w3 * r3[d];
    }

    const int64_t group_size_, head_dim_, num_rows_;
    std::vector<float> query_, sum_, rows_, scores_, maximum_, mass_;
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
            for (int64_t position = first; position < stop;) {
                const int64_t offset = position % block_size;
                const int64_t num_keys = std::min(block_size - offset, stop - position);
                const int64_t block = block_tables[request * table_width + position / block_size];
                const int64_t start = (block * block_size + offset) * row + kv_head * head_dim;
                decode.add(keys + start, values + start, num_keys, row, softcap);
                position += num_keys;
            }
            decode.finish(output + (request * num_kv_heads * group_size + head) * head_dim);
        }
    }
}

// x / sqrt(mean(x²) + epsilon) · weight of one row. Llama rounds before it multiplies by the weight, Gemma after.
template <typename T>
inline void normalise_row(const T* x, T* y, const float* weight, int64_t dim, float epsilon, int32_t rounds_first) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t d = 0; d < dim; ++d) squares += load(x[d]) * load(x[d]);
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(dim) + epsilon);
    if (rounds_first) {
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) store(y + d, rounded<T>(load(x[d]) * factor) * weight[d]);
    } else {
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) store(y + d, load(x[d]) * factor * weight[d]);
    }
}

// input, output [rows, dim].
template <typename T>
void normalise(const T* input, T* output, const float* weight, int64_t num_rows, int64_t dim, float epsilon,
               int32_t rounds_first) {
#pragma omp parallel for if (num_rows * dim > kSerial)
    for (int64_t r = 0; r < num_rows; ++r)
        normalise_row(input + r * dim, output + r * dim, weight, dim, epsilon, rounds_first);
}

// One head in place, its halves rotated by cosine and sine [D] (the convention of GPT-NeoX).
template <typename T>
inline void rotate_head(T* head, const T* cosine, const T* sine, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    T *low = head, *high = head + half;
#pragma omp simd
    for (int64_t d = 0; d < half; ++d) {
        const float a = load(low[d]), b = load(high[d]);
        store(low + d, rounded<T>(a * load(cosine[d])) - rounded<T>(b * load(sine[d])));
        store(high + d, rounded<T>(b * load(cosine[d + half])) + rounded<T>(a * load(sine[d + half])));
    }
}

// states [T, heads, D] in place, by cosine and sine [T, D].
template <typename T>
void rotate(T* states, const T* cosine, const T* sine, int64_t num_tokens, int64_t num_heads, int64_t head_dim) {
#pragma omp parallel for if (num_tokens * num_heads * head_dim > kSerial)
    for (int64_t token = 0; token < num_tokens; ++token)
        for (int64_t head = 0; head < num_heads; ++head)
            rotate_head(states + (token * num_heads + head) * head_dim, cosine + token * head_dim, sine + token * head_dim,
                        head_dim);
}

// All between the product that gives queries, keys and values and attention, in one sweep over the tokens. states
// [T, H + 2 · K, D], queries first, then keys and values; the heads of queries and keys are normalised by their weights
// [D] where those are not null, and rotated. Queries go to query [T, H, D], keys and values to their slots [.., K, D].
template <typename T>
void place_heads(const T* states, T* query, T* keys, T* values, const int64_t* slots, const T* cosine, const T* sine,
                 const float* query_weight, const float* key_weight, int64_t num_tokens, int64_t num_heads,
                 int64_t num_kv_heads, int64_t head_dim, float epsilon, int32_t rounds_first) {
    const int64_t row = (num_heads + 2 * num_kv_heads) * head_dim, kv_row = num_kv_heads * head_dim;
#pragma omp parallel for if (num_tokens * row > kSerial)
    for (int64_t token = 0; token < num_tokens; ++token) {
        const T* source = states + token * row;
        const auto place = [&](T* targets, int64_t count, const float* weight) {
            for (int64_t head = 0; head < count; ++head, source += head_dim) {
                T* target = targets + head * head_dim;
                if (weight != nullptr)
                    normalise_row(source, target, weight, head_dim, epsilon, rounds_first);
                else
                    std::copy_n(source, head_dim, target);
                rotate_head(target, cosine + token * head_dim, sine + token * head_dim, head_dim);
            }
        };
        place(query + token * num_heads * head_dim, num_heads, query_weight);
        place(keys + slots[token] * kv_row, num_kv_heads, key_weight);
        std::copy_n(source, kv_row, values + slots[token] * kv_row);
    }
}

// input [rows, 2 · dim], gates first, output [rows, dim]: activation(gate) · up. GELU by tanh is x · sigmoid(2u).
template <typename T>
void gate(const T* input, T* output, int64_t num_rows, int64_t dim, int32_t is_gelu) {
#pragma omp parallel for if (num_rows * dim > kSerial / 16)
    for (int64_t r = 0; r < num_rows; ++r) {
        const T *gates = input + r * 2 * dim, *ups = gates + dim;
        T* y = output + r * dim;
#pragma omp simd
        for (int64_t d = 0; d < dim; ++d) {
            const float x = load(gates[d]);
            const float slope = is_gelu ? 1.5957691216f * (x + 0.044715f * x * x * x) : x;
            store(y + d, rounded<T>(x / (1.0f + exponential(-slope))) * load(ups[d]));
        }
    }
}

}  // namespace

#define FOR_TYPE(T, suffix)                                                                                            \
    void write_slots_##suffix(T* keys, T* values, const T* new_keys, const T* new_values, const int64_t* slots,        \
                              int64_t num_tokens, int64_t num_heads, int64_t head_dim, int64_t key_token_stride,       \
                              int64_t key_head_stride, int64_t value_token_stride, int64_t value_head_stride) {        \
        write_slots(keys, values, new_keys, new_values, slots, num_tokens, num_heads, head_dim, key_token_stride,      \
                    key_head_stride, value_token_stride, value_head_stride);                                           \
    }                                                                                                                  \
    void attend_decodes_##suffix(const T* query, T* output, const T* keys, const T* values,                            \
                                 const int32_t* block_tables, const int32_t* context_lens, const float* sinks,         \
                                 int64_t num_requests, int64_t table_width, int64_t num_kv_heads, int64_t group_size,  \
                                 int64_t head_dim, int64_t block_size, int64_t window, int64_t query_token_stride,     \
                                 int64_t query_head_stride, float scaling, float softcap) {                            \
        attend_decodes(query, output, keys, values, block_tables, context_lens, sinks, num_requests, table_width,      \
                       num_kv_heads, group_size, head_dim, block_size, window, query_token_stride, query_head_stride,  \
                       scaling, softcap);                                                                              \
    }                                                                                                                  \
    void normalise_##suffix(const T* input, T* output, const float* weight, int64_t num_rows, int64_t dim,             \
                            float epsilon, int32_t rounds_first) {                                                     \
        normalise(input, output, weight, num_rows, dim, epsilon, rounds_first);                                        \
    }                                                                                                                  \
    void rotate_##suffix(T* states, const T* cosine, const T* sine, int64_t num_tokens, int64_t num_heads,             \
                         int64_t head_dim) {                                                                           \
        rotate(states, cosine, sine, num_tokens, num_heads, head_dim);                                                 \
    }                                                                                                                  \
    void place_heads_##suffix(const T* states, T* query, T* keys, T* values, const int64_t* slots, const T* cosine,        \
                              const T* sine, const float* query_weight, const float* key_weight, int64_t num_tokens,   \
                              int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float epsilon,                \
                              int32_t rounds_first) {                                                                  \
        place_heads(states, query, keys, values, slots, cosine, sine, query_weight, key_weight, num_tokens, num_heads, \
                    num_kv_heads, head_dim, epsilon, rounds_first);                                                    \
    }                                                                                                                  \
    void gate_##suffix(const T* input, T* output, int64_t num_rows, int64_t dim, int32_t is_gelu) {                    \
        gate(input, output, num_rows, dim, is_gelu);                                                                   \
    }

extern "C" {
FOR_TYPE(bfloat16, bfloat16)
FOR_TYPE(float, float32)
}
