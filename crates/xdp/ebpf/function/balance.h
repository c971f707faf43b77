/* Spreads flows over next hops (crates/functions/src/balance.rs). */
#pragma once
#include "headers.h"
#include "mix.h"

/* The order is that of the function's outcomes. */
enum balance_outcome { BALANCED, BALANCE_PASSED, BALANCE_MALFORMED };

#define BUCKETS_LOG 16

/* The hop of each bucket of flows; written by crates/xdp/src/functions/constants.rs. */
struct hop {
	__u16 address[3];
	__u16 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hop);
} buckets SEC(".maps");

static __always_inline __u64 both(__be32 high, __be32 low)
{
	return (__u64)bpf_ntohl(high) << 32 | bpf_ntohl(low);
}

/* Only the first fragment contains the ports, so all fragments are hashed by their addresses. */
static __always_inline __u64 flow_hash(const struct tuple *it, __u64 seed)
{
	__u64 rest = it->protocol;

	if (!it->is_fragment)
		rest |= (__u64)it->source_port << 24 | (__u64)it->destination_port << 8;
	seed = mix(seed, both(it->source[0], it->source[1]) ^ rest);
	seed = mix(seed, both(it->source[2], it->source[3]));
	seed = mix(seed, both(it->destination[0], it->destination[1]));
	return mix(seed, both(it->destination[2], it->destination[3]));
}

__noinline int balance(struct xdp_md *context, __u32 first, __u64 seed)
{
	struct tuple tuple = {};
	int kind = read_tuple(context, &tuple);
	struct ethernet_header *ethernet = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct hop *hop;
	__u32 key;

	if (kind == MALFORMED || (void *)(ethernet + 1) > end)
		return BALANCE_MALFORMED;
	/* The first bit on the link marks a group address. */
	if (kind == NO_IP || ethernet->destination[0] & 1)
		return BALANCE_PASSED;
	key = first + (flow_hash(&tuple, seed) >> (64 - BUCKETS_LOG));
	hop = bpf_map_lookup_elem(&buckets, &key);
	if (!hop)
		return BALANCE_MALFORMED;
#pragma unroll
	for (int i = 0; i < 3; i++)
		ethernet->destination[i] = hop->address[i];
	return BALANCED;
}
