// What products are made of: the parts of AVX-512 that every server's processor has that has any (Intel's from Skylake on,
// AMD's from Zen 4 on). Instructions for bfloat16 (AVX512_BF16, AMX) are used where there are some, and not needed.

#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define METRONOME_HAS_PRODUCTS
#endif
