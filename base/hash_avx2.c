// SPDX-License-Identifier: Apache-2.0
//
// hash64_seed once more, compiled for processors with AVX2. libxxhash's header chooses its instructions at compile
// time.
#include "lib.h"

#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash64_seed_avx2(const void *p, size_t len, uint64_t seed) { return XXH3_64bits_withSeed(p, len, seed); }
#endif
