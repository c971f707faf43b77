/* Accepts or drops by addresses, protocol and ports: the first rule that matches decides (crates/functions/src/filter.rs). */
#pragma once
#include "headers.h"

/* The order is that of the function's outcomes. */
enum filter_outcome {
	ACCEPTED_BY_RULE, ACCEPTED_BY_DEFAULT, ACCEPTED_NO_IP, DROPPED_BY_RULE, DROPPED_BY_DEFAULT, FILTER_MALFORMED,
};

#define ANY_PROTOCOL 256
#define MOST_RULES 4096

/* Written by crates/xdp/src/functions/constants.rs. */
struct rule {
	/* The prefixes of the addresses, and their masks, in network byte order. */
	__be32 source[4];
	__be32 source_mask[4];
	__be32 destination[4];
	__be32 destination_mask[4];
	/* The first and the last port. */
	__u16 source_ports[2];
	__u16 destination_ports[2];
	__u16 protocol;
	__u8 asks_ports;
	__u8 drops;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct look {
	struct tuple tuple;
	__u32 first;
	__u32 outcome;
};

static long look_at_rule(__u32 index, struct look *look)
{
	const struct tuple *tuple = &look->tuple;
	__u32 key = look->first + index;
	const struct rule *rule = bpf_map_lookup_elem(&rules, &key);

	if (!rule)
		return 1;
	if (rule->protocol != ANY_PROTOCOL && rule->protocol != tuple->protocol)
		return 0;
	if (rule->asks_ports && !tuple->has_ports)
		return 0;
	if (tuple->source_port < rule->source_ports[0] || tuple->source_port > rule->source_ports[1] ||
	    tuple->destination_port < rule->destination_ports[0] || tuple->destination_port > rule->destination_ports[1])
		return 0;
	if (!has(rule->source, rule->source_mask, tuple->source) ||
	    !has(rule->destination, rule->destination_mask, tuple->destination))
		return 0;
	look->outcome = rule->drops ? DROPPED_BY_RULE : ACCEPTED_BY_RULE;
	return 1;
}

__noinline int filter(struct xdp_md *context, __u32 first, __u32 count, __u32 default_drops)
{
	struct look look = { .first = first };
	int kind = read_tuple(context, &look.tuple);

	if (kind != IP_PACKET)
		return kind == NO_IP ? ACCEPTED_NO_IP : FILTER_MALFORMED;
	look.outcome = default_drops ? DROPPED_BY_DEFAULT : ACCEPTED_BY_DEFAULT;
	bpf_loop(count > MOST_RULES ? MOST_RULES : count, look_at_rule, &look, 0);
	return look.outcome;
}
