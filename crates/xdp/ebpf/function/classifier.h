/* Selects the chain of a frame: the first rule that matches decides (crates/function/src/classifier.rs). */
#pragma once
#include "headers.h"

/* Twice the limit on rules of a chain file: a symmetric rule is two here. */
#define MOST_CLASS_RULES 2048
/* The identifier of a frame without a VLAN tag. */
#define NO_TAG 0xffff

/* The fields that a rule compares. */
enum class_field {
	CLASS_TYPE = 1, CLASS_TAG = 2, CLASS_IP = 4, CLASS_PROTOCOL = 8, CLASS_PORTS = 16, CLASS_DSCP = 32,
};

/* Written by crates/xdp/src/functions/constants.rs. */
struct class_rule {
	/* The prefixes of the addresses, and their masks, in network byte order. */
	__be32 source[4];
	__be32 source_mask[4];
	__be32 destination[4];
	__be32 destination_mask[4];
	/* The first and the last port. */
	__u16 source_ports[2];
	__u16 destination_ports[2];
	__u16 type;
	__u16 tag;
	__u8 protocol;
	__u8 dscp;
	__u8 fields;
	__u8 class;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct class_rule);
} class_rules SEC(".maps");

/* The fields of a frame. */
struct class_look {
	struct tuple tuple;
	__u16 type;
	__u16 tag;
	/* False for a frame that is too short for its type. */
	__u8 has_type;
	__u8 is_ip;
	__u8 class;
};

static __always_inline int ip_fits(const struct class_rule *rule, const struct class_look *look)
{
	const struct tuple *tuple = &look->tuple;

	if (!look->is_ip)
		return 0;
	if (rule->fields & CLASS_PROTOCOL && rule->protocol != tuple->protocol)
		return 0;
	if (rule->fields & CLASS_DSCP && rule->dscp != tuple->dscp)
		return 0;
	/* Fragments have no ports here, the first one included. */
	if (rule->fields & CLASS_PORTS &&
	    (!tuple->has_ports || tuple->is_fragment || tuple->source_port < rule->source_ports[0] ||
	     tuple->source_port > rule->source_ports[1] || tuple->destination_port < rule->destination_ports[0] ||
	     tuple->destination_port > rule->destination_ports[1]))
		return 0;
	return has(rule->source, rule->source_mask, tuple->source) &&
	       has(rule->destination, rule->destination_mask, tuple->destination);
}

static long look_at_class_rule(__u32 index, struct class_look *look)
{
	const struct class_rule *rule = bpf_map_lookup_elem(&class_rules, &index);

	if (!rule)
		return 1;
	if (rule->fields & CLASS_TYPE && (!look->has_type || rule->type != look->type))
		return 0;
	if (rule->fields & CLASS_TAG && rule->tag != look->tag)
		return 0;
	if (rule->fields & CLASS_IP && !ip_fits(rule, look))
		return 0;
	look->class = rule->class;
	return 1;
}

static __always_inline void read_type_and_tag(struct xdp_md *context, struct class_look *look)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__be16 *outer = data + 12, *type;
	__u32 at;

	type = read_type(data, end, &at);
	if (!type)
		return;
	look->has_type = 1;
	look->type = bpf_ntohs(*type);
	if ((void *)(outer + 2) <= end && is_tag(*outer))
		look->tag = bpf_ntohs(outer[1]) & 0xfff;
}

__noinline int classify(struct xdp_md *context, __u32 rules, __u32 otherwise)
{
	struct class_look look = { .class = otherwise, .tag = NO_TAG };

	look.is_ip = read_tuple(context, &look.tuple) == IP_PACKET;
	/* Without this, clang shares the reads of the frame's bounds in a form that the verifier refuses. */
	asm volatile("" ::: "memory");
	read_type_and_tag(context, &look);
	bpf_loop(rules > MOST_CLASS_RULES ? MOST_CLASS_RULES : rules, look_at_class_rule, &look, 0);
	return look.class;
}
