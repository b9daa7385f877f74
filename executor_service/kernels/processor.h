// What products are made of. AVX-512 as every server's processor has it that has any (Intel's from Skylake on, AMD's from Zen 4
// on), with instructions for bfloat16 (AVX512_BF16, AMX) used where there are some; else AVX2 with FMA (from Haswell and Zen on).

#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define METRONOME_HAS_PRODUCTS
#define METRONOME_IS_AVX512
#elif defined(__AVX2__) && defined(__FMA__)
#define METRONOME_HAS_PRODUCTS
#endif
