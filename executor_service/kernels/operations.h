// The operations that a layer is made of, so that layer.cpp calls what the other files define.

#pragma once

#include <cstdint>

#include "numbers.h"

extern "C" {

// linear.cpp
void linear_bfloat16(const bfloat16* input, const uint32_t* panels, const float* bias, bfloat16* output,
                     int64_t num_tokens, int64_t dim, int64_t num_outputs);

// head.cpp
void largest_logits_bfloat16(const uint16_t* input, const uint32_t* panels, int64_t* entries, float* logits,
                             int64_t num_tokens, int64_t dim, int64_t num_entries);

// cpu.cpp
void normalise_bfloat16(const bfloat16* input, bfloat16* output, const float* weight, int64_t num_rows, int64_t dim,
                        float epsilon, int32_t rounds_first);
void add_normalised_bfloat16(bfloat16* states, const bfloat16* input, const float* weight, int64_t num_rows,
                             int64_t dim, float epsilon, int32_t rounds_first);
void place_heads_bfloat16(const bfloat16* states, bfloat16* query, bfloat16* keys, bfloat16* values,
                          const int64_t* slots, const bfloat16* cosine, const bfloat16* sine,
                          const float* query_weight, const float* key_weight, int64_t num_tokens, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_dim, float epsilon, int32_t rounds_first);
void gate_bfloat16(const bfloat16* input, bfloat16* output, int64_t num_rows, int64_t dim, int32_t is_gelu);

// attention_decodes.cpp
void attend_decodes_bfloat16(const bfloat16* query, bfloat16* output, const bfloat16* keys, const bfloat16* values,
                             const int32_t* block_tables, const int32_t* context_lens, const float* sinks,
                             int64_t num_requests, int64_t table_width, int64_t num_kv_heads, int64_t group_size,
                             int64_t head_dim, int64_t block_size, int64_t window, int64_t query_token_stride,
                             int64_t query_head_stride, float scaling, float softcap);

// attention_chunks.cpp
void attend_chunks_bfloat16(const int64_t* query_starts, const bfloat16* query, bfloat16* output, const bfloat16* keys,
                            const bfloat16* values, const int32_t* block_tables, const int32_t* context_lens,
                            const float* sinks, int64_t num_requests, int64_t table_width, int64_t num_kv_heads,
                            int64_t group_size, int64_t head_dim, int64_t block_size, int64_t window,
                            int64_t query_token_stride, int64_t query_head_stride, float scaling, float softcap);
}
