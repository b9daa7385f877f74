// The operations of a forward pass that torch has only as chains of small ones, or only over gathered copies:
// storing keys and values in their slots, normalisation, rotation, gating, and all that stands between a layer's first
// product and its attention.
//
// Plain C functions over raw memory, so that the library depends on no version of torch and compiles in seconds; cpu.py
// declares them. Sums are in float32 whatever the type of the model. Threads are OpenMP's, those that torch uses. No loop
// assumes that numbers are finite: what a faulty request computes has to stay visible in its own logits.

#include <vector>

#include "numbers.h"
#include "operations.h"

namespace {

// Work below this many numbers is left to one thread: some ten microseconds, in which others may have something better to
// do than to wait for the end of it.
constexpr int64_t kSerial = 64 * 1024;

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

// states [rows, dim] += input, normalised if there is a weight; rounded as one operation after the other would.
template <typename T>
void add_normalised(T* states, const T* input, const float* weight, int64_t num_rows, int64_t dim, float epsilon,
                    int32_t rounds_first) {
#pragma omp parallel if (num_rows * dim > kSerial)
    {
        std::vector<T> normalised(weight != nullptr ? dim : 0);
#pragma omp for
        for (int64_t r = 0; r < num_rows; ++r) {
            const T* row = input + r * dim;
            if (weight != nullptr) {
                normalise_row(row, normalised.data(), weight, dim, epsilon, rounds_first);
                row = normalised.data();
            }
            T* target = states + r * dim;
#pragma omp simd
            for (int64_t d = 0; d < dim; ++d) store(target + d, load(target[d]) + load(row[d]));
        }
    }
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
    void normalise_##suffix(const T* input, T* output, const float* weight, int64_t num_rows, int64_t dim,             \
                            float epsilon, int32_t rounds_first) {                                                     \
        normalise(input, output, weight, num_rows, dim, epsilon, rounds_first);                                        \
    }                                                                                                                  \
    void add_normalised_##suffix(T* states, const T* input, const float* weight, int64_t num_rows, int64_t dim,        \
                                 float epsilon, int32_t rounds_first) {                                                \
        add_normalised(states, input, weight, num_rows, dim, epsilon, rounds_first);                                   \
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
