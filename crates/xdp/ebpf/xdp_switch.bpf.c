/* The rules of the function `switch` (crates/switch/src) that send frames unchanged, or with new MAC
 * addresses, through one port or all others: the first rule that matches decides. Frames that it does not parse (tags,
 * IPv6, options, fragments), and those with other actions, are passed up to the process, which applies the same rules.
 * One copy is loaded for each ingress interface. */
#define EXITS 64
#include "forwarding.h"
#include "packet.h"
#include "hand_up.h"

#define RULES 64
#define WORDS 8

/* The numbers are those of crates/xdp/src/switch/maps.rs. */
enum verdict { UP, SEND, FLOOD, STOP, MISS };

/* The order is that of crates/xdp/src/switch/mod.rs. */
enum outcome { SENT, STOPPED, MISSED, TOO_MUCH, OUTCOMES };

/* The words of a key are those of crates/switch/src/key.rs. */
struct rule {
	__u64 value[WORDS];
	__u64 mask[WORDS];
	__u32 verdict;
	__u32 exit;
	/* The addresses that are set: bit 0 for the destination, bit 1 for the source. */
	__u32 sets;
	__u16 destination[3];
	__u16 source[3];
};

/* The rules in the order of their priorities. Written by crates/xdp/src/switch/maps.rs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RULES);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

#include "exits.h"

/* Set before the program is loaded; written by crates/xdp/src/switch/maps.rs. */
const volatile struct {
	/* The number of the ingress port, and the count of all ports. */
	__u32 from;
	__u32 ports;
	__u32 rules;
	/* 1 if rules match more than the port and MAC addresses. */
	__u32 reads_headers;
} settings;

static __always_inline __u64 address(const __u16 *of)
{
	return (__u64)bpf_ntohs(of[0]) << 48 | (__u64)bpf_ntohs(of[1]) << 32 | (__u64)bpf_ntohs(of[2]) << 16;
}

/* Reads the key of a frame. Returns 0 for a frame with fields that rules may match and that are not parsed here. */
static __always_inline int read_key(struct xdp_md *context, __u64 *key)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *ethernet = data;
	struct ipv4_header *ip = data + sizeof(*ethernet);
	__be16 *ports = data + sizeof(*ethernet) + sizeof(*ip);
	__u64 length = end - data, total;

	if ((void *)(ethernet + 1) > end)
		return 0;
	key[0] = address(ethernet->destination) | settings.from;
	key[1] = address(ethernet->source);
	if (!settings.reads_headers)
		return 1;
	if (ethernet->type != bpf_htons(IPV4) || (void *)(ports + 2) > end)
		return 0;
	total = bpf_ntohs(ip->length);
	if (ip->version_and_words != 0x45 || ip->fragment & bpf_htons(0x3fff) ||
	    total < sizeof(*ip) + 2 * sizeof(*ports) || sizeof(*ethernet) + total > length)
		return 0;
	key[1] |= IPV4;
	key[2] = (__u64)ip->protocol << 16 | (__u64)ip->service << 24 | (__u64)ip->hops << 32;
	if (ip->protocol == TCP || ip->protocol == UDP || ip->protocol == SCTP) {
		key[3] = (__u64)bpf_ntohs(ports[0]) << 48 | (__u64)bpf_ntohs(ports[1]) << 32;
	} else if (ip->protocol == ICMP || ip->protocol == ICMPV6) {
		__u16 type_and_code = bpf_ntohs(ports[0]);

		key[3] = (__u64)(type_and_code >> 8) << 48 | (__u64)(type_and_code & 0xff) << 32;
	}
	key[5] = bpf_ntohl(ip->source);
	key[7] = bpf_ntohl(ip->destination);
	return 1;
}

static __always_inline struct rule *find(const __u64 *key)
{
	for (__u32 i = 0; i < RULES; i++) {
		__u32 number = i;
		__u64 differs = 0;
		struct rule *rule;

		if (i >= settings.rules)
			break;
		rule = bpf_map_lookup_elem(&rules, &number);
		if (!rule)
			break;
#pragma unroll
		for (int word = 0; word < WORDS; word++)
			differs |= (key[word] & rule->mask[word]) ^ rule->value[word];
		if (!differs)
			return rule;
	}
	return 0;
}

/* Sets the addresses that the rule specifies. Returns 0 for a frame without MAC addresses. */
static __always_inline int set_addresses(struct xdp_md *context, const struct rule *rule)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *ethernet = data;

	if ((void *)(ethernet + 1) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (rule->sets & 1)
			ethernet->destination[i] = rule->destination[i];
		if (rule->sets & 2)
			ethernet->source[i] = rule->source[i];
	}
	return 1;
}

static __always_inline void count_left(__u32 exit, __u64 bytes)
{
	struct left *through = bpf_map_lookup_elem(&left, &exit);

	if (through) {
		through->packets++;
		through->bytes += bytes;
	}
}

static __always_inline long flood(__u64 bytes)
{
	/* The frame is sent to all interfaces in the map except its ingress. */
	long verdict = bpf_redirect_map(&out, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);

	for (__u32 i = 0; i < EXITS; i++) {
		if (i >= settings.ports)
			break;
		if (i != settings.from)
			count_left(i, bytes);
	}
	return verdict;
}

SEC("xdp")
int xdp_switch(struct xdp_md *context)
{
	__u64 bytes = context->data_end - context->data;
	__u64 of[WORDS] = {};
	__u32 key = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);
	struct outcomes *sums = bpf_map_lookup_elem(&outcomes, &key);
	struct rule *rule = 0;
	long verdict;

	if (!counters || !sums)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	if (read_key(context, of))
		rule = find(of);
	if (!rule || rule->verdict == UP) {
		if (hand_up(context)) {
			counters->handed_up++;
			counters->dropped_bytes += bytes;
			return XDP_DROP;
		}
		sums->count[TOO_MUCH]++;
		goto drop;
	}
	if (rule->verdict == STOP || rule->verdict == MISS) {
		sums->count[rule->verdict == STOP ? STOPPED : MISSED]++;
		goto drop;
	}
	sums->count[SENT]++;
	if (!set_addresses(context, rule))
		return XDP_ABORTED;
	if (rule->verdict == FLOOD)
		return flood(bytes);
	verdict = leave_through(context, rule->exit, counters, bytes);
	if (verdict == XDP_REDIRECT)
		count_left(rule->exit, bytes);
	return verdict;
drop:
	counters->dropped++;
	counters->dropped_bytes += bytes;
	return XDP_DROP;
}

char _license[] SEC("license") = "Apache-2.0";
