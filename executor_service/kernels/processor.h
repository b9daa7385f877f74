// What products are made of. AVX-512 as every server's processor has it that has any (Intel's from Skylake on, AMD's from Zen 4
// on), with instructions for bfloat16 (AVX512_BF16, AMX) used where there are some; else AVX2 with FMA (from Haswell and Zen on).

#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define METRONOME_HAS_PRODUCTS
#define METRONOME_IS_AVX512
#elif defined(__AVX2__) && defined(__FMA__)
#define METRONOME_HAS_PRODUCTS
#endif

// Products of bytes, in which the output head looks for the largest logits first (head_screened.cpp). AVX-512 without an
// instruction for them does without.
#if defined(METRONOME_HAS_PRODUCTS) && (!defined(METRONOME_IS_AVX512) || defined(__AVX512VNNI__))
#define METRONOME_MULTIPLIES_BYTES
#endif
