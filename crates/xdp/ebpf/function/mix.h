/* The hash of crates/function/src/mix.rs. */
#pragma once
#include "../xdp_types.h"

static __always_inline __u64 mix(__u64 state, __u64 word)
{
	__u64 z = (state + 0x9E3779B97F4A7C15ULL) ^ word;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	return z ^ (z >> 31);
}
