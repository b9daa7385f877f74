// A whole decoder layer in one call, of the operations of the other files: between two of them the interpreter would take
// as long as the operations themselves where few tokens run.

#include "processor.h"

#ifdef METRONOME_HAS_PRODUCTS

#include "numbers.h"
#include "operations.h"
#include "panels.h"

namespace {

// A linear layer: panels.h has the order of its panels.
struct Linear {
    const Word* panels;
    const float* bias;  // or null
    int64_t num_inputs, num_outputs;
};

// layer.py has these three too, field by field.
struct Layer {
    Linear qkv, attention_output, gate_up, down;
    // Weights of norms; the two of what is added to the states, and those of heads, may be null.
    const float *input_norm, *attention_norm, *feed_forward_norm, *feed_forward_output_norm, *query_norm, *key_norm;
    int64_t num_heads, num_kv_heads, head_dim, window;
    float norm_epsilon, head_norm_epsilon, scaling, softcap;
    int32_t norms_round_first, head_norms_round_first, gate_is_gelu;
    int32_t is_last;  // of the model: nobody asks for more of what follows its keys and values than for the pass's rows
};

// All layers of a pass share it. Decodes first, then chunks.
struct Pass {
    const int64_t* slot_mapping;  // [T]
    const int32_t* block_tables;  // [R, table_width]
    const int32_t* context_lens;  // [R]
    const int64_t* chunk_starts;  // [chunks + 1]
    int64_t num_tokens, num_decodes, num_requests, table_width, block_size;
    // Tokens whose states are asked for, each as a decode, which sees the keys up to its own.
    const int64_t* rows;              // [W]
    const int32_t* row_tables;        // [W, table_width]
    const int32_t* row_context_lens;  // [W]
    int64_t num_rows;
};

void gather(const bfloat16* from, const int64_t* rows, int64_t count, int64_t width, bfloat16* to) {
    for (int64_t r = 0; r < count; ++r) std::copy_n(from + rows[r] * width, width, to + r * width);
}
void scatter(const bfloat16* from, const int64_t* rows, int64_t count, int64_t width, bfloat16* to) {
    for (int64_t r = 0; r < count; ++r) std::copy_n(from + r * width, width, to + rows[r] * width);
}

}  // namespace

extern "C" {

// states [T, hidden], in place, of the last layer the pass's rows alone; keys, values: the pool of this layer; cosine, sine
// [T, D].
void run_layer_bfloat16(const Layer* layer, const Pass* pass, bfloat16* states, bfloat16* keys, bfloat16* values,
                        const bfloat16* cosine, const bfloat16* sine) {
    static thread_local Workspace<bfloat16> normed_space, qkv_space, query_space, attended_space, gates_space,
        gated_space, result_space, row_states_space, row_query_space;
    const int64_t hidden = layer->qkv.num_inputs, head_dim = layer->head_dim;
    const int64_t width = layer->num_heads * head_dim, group_size = layer->num_heads / layer->num_kv_heads;
    const bool goes_on_with_rows = layer->is_last && pass->num_decodes < pass->num_tokens;
    int64_t num_tokens = pass->num_tokens;
    bfloat16* const all_states = states;
    bfloat16* normed = normed_space.of(num_tokens * hidden);
    bfloat16* qkv = qkv_space.of(num_tokens * layer->qkv.num_outputs);
    bfloat16* query = query_space.of(num_tokens * width);
    bfloat16* attended = attended_space.of(num_tokens * width);
    bfloat16* gates = gates_space.of(num_tokens * layer->gate_up.num_outputs);
    bfloat16* gated = gated_space.of(num_tokens * layer->down.num_inputs);
    bfloat16* result = result_space.of(num_tokens * hidden);
    const auto multiply_by = [&](const Linear& linear, const bfloat16* input, bfloat16* output) {
        linear_bfloat16(input, linear.panels, linear.bias, output, num_tokens, linear.num_inputs, linear.num_outputs);
    };
    const auto normalise_by = [&](const float* weight) {
        normalise_bfloat16(states, normed, weight, num_tokens, hidden, layer->norm_epsilon, layer->norms_round_first);
    };
    const auto add_by = [&](const float* weight) {
        add_normalised_bfloat16(states, result, weight, num_tokens, hidden, layer->norm_epsilon, layer->norms_round_first);
    };
    const auto attend_decodes = [&](const int32_t* tables, const int32_t* context_lens, int64_t num_decodes) {
        attend_decodes_bfloat16(query, attended, keys, values, tables, context_lens, nullptr, num_decodes,
                                pass->table_width, layer->num_kv_heads, group_size, head_dim, pass->block_size,
                                layer->window, width, head_dim, layer->scaling, layer->softcap);
    };

    normalise_by(layer->input_norm);
    multiply_by(layer->qkv, normed, qkv);
    place_heads_bfloat16(qkv, query, keys, values, pass->slot_mapping, cosine, sine, layer->query_norm, layer->key_norm,
                         num_tokens, layer->num_heads, layer->num_kv_heads, head_dim, layer->head_norm_epsilon,
                         layer->head_norms_round_first);
    if (goes_on_with_rows) {
        num_tokens = pass->num_rows;
        if (num_tokens == 0) return;
        states = row_states_space.of(num_tokens * hidden);
        gather(all_states, pass->rows, num_tokens, hidden, states);
        bfloat16* row_query = row_query_space.of(num_tokens * width);
        gather(query, pass->rows, num_tokens, width, row_query);
        query = row_query;
        attend_decodes(pass->row_tables, pass->row_context_lens, num_tokens);
    } else if (pass->num_decodes > 0) {
        attend_decodes(pass->block_tables, pass->context_lens, pass->num_decodes);
    }
    if (!goes_on_with_rows && pass->num_decodes < pass->num_requests)
        attend_chunks_bfloat16(pass->chunk_starts, query, attended, keys, values,
                               pass->block_tables + pass->num_decodes * pass->table_width,
                               pass->context_lens + pass->num_decodes, nullptr,
                               pass->num_requests - pass->num_decodes, pass->table_width, layer->num_kv_heads, group_size,
                               head_dim, pass->block_size, layer->window, width, head_dim, layer->scaling, layer->softcap);
    multiply_by(layer->attention_output, attended, result);
    add_by(layer->attention_norm);

    normalise_by(layer->feed_forward_norm);
    multiply_by(layer->gate_up, normed, gates);
    gate_bfloat16(gates, gated, num_tokens, layer->down.num_inputs, layer->gate_is_gelu);
    multiply_by(layer->down, gated, result);
    add_by(layer->feed_forward_output_norm);
    if (goes_on_with_rows) scatter(states, pass->rows, num_tokens, hidden, all_states);
}
}

#endif
