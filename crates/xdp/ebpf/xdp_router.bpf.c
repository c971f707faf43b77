/* The fast path of the router (crates/router/src). It looks destinations up, decrements the TTL or hop limit,
 * sets the MAC addresses of the next link, and sends packets out of the interface of their route. Other packets are
 * passed up to the process, which handles them with the same routes: those for the router's own addresses, from
 * neighbours, in trouble, and other rare cases. One copy is loaded for each ingress interface. */
#define EXITS 64
#include "forwarding.h"
#include "function/headers.h"
#include "function/mix.h"
#include "hand_up.h"

#define SHARES 64

/* The order is that of crates/router/src/fast.rs. */
enum outcome {
	FORWARDED, TO_SLOW_PATH, FOR_ANOTHER_STATION, NO_INTERFACE, NEITHER_IP_NOR_ARP, BROKEN_PACKET, WRONG_CHECKSUM,
	MARTIAN, INTO_BLACKHOLE, TOO_MUCH,
	OUTCOMES,
};

/* A verdict: the packet is passed up. A packet in trouble, such as one with an expired TTL, is passed up only while
 * half of the ring is free. A flood of such packets thus leaves space for messages of neighbours and packets to the
 * router. */
#define UP 64
#define IN_TROUBLE 128

/* The kinds of next hops, in the highest byte of their word. The port is below it, then the MAC address, or the group
 * in the lowest byte. The numbers are those of crates/router/src/hop.rs. */
enum hop { NO_ROUTE, FORWARD, UNRESOLVED, LOCAL, BLACKHOLE, UNREACHABLE, PROHIBITED, GROUP };

struct key_v6 {
	__u32 length;
	__be32 address[4];
};

/* The IPv4 table, with the same entries as crates/lpm/src/v4. The first 24 bits of an address select an entry, which is
 * the number of the next hop or that of a block. A block has an entry for each value of the last 8 bits. All maps here
 * except the counters are written by crates/xdp/src/router/maps.rs. */
struct entries {
	__u16 of[256];
};

#define IS_BLOCK 0x8000

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entries);
} first_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entries);
} blocks_v4 SEC(".maps");

/* The number of the next hop of an IPv6 prefix. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct key_v6);
	__type(value, __u32);
} routes_v6 SEC(".maps");

/* The word of each next hop, by number. Number 0 belongs to no route. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} hops SEC(".maps");

/* The number of the next hop of each share of a group's flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shares SEC(".maps");

#include "exits.h"

/* Set before the program is loaded; written by crates/xdp/src/router/maps.rs. */
const volatile struct {
	/* The number of interfaces of the router, and the number of the ingress interface. */
	__u32 interfaces;
	__u32 from;
	/* The seed of the flow hash, as in the process. */
	__u64 flow_seed;
	struct {
		__u16 mac[3];
		__u16 mtu;
		/* 1 if the process receives multicast frames and those of other protocols. */
		__u16 listens;
	} interface[EXITS];
} settings;

/* Returns whether the address is invalid as source and as destination (RFC 1812 sections 5.3.7, 4.2.2.11). */
static __always_inline int is_nobody_v4(__u32 address)
{
	return address >> 24 == 0 || address >> 24 == 127 || address >> 24 >= 240;
}

static __always_inline int is_nobody_v6(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && bpf_ntohl(address[3]) <= 1;
}

static __always_inline int is_group_v6(const __be32 *address)
{
	return bpf_ntohl(address[0]) >> 24 == 0xff;
}

static __always_inline int is_link_local_v6(const __be32 *address)
{
	return bpf_ntohl(address[0]) >> 22 == 0xfe80 >> 6;
}

static __always_inline __u64 both(__be32 high, __be32 low)
{
	return (__u64)bpf_ntohl(high) << 32 | bpf_ntohl(low);
}

/* Returns the packet's share in a group of next hops; -1 for a packet that the process has to handle. Only the first
 * fragment contains the ports, so all fragments are hashed by their addresses. */
__noinline int share_of(struct xdp_md *context)
{
	struct tuple it = {};
	__u64 rest, flow;

	if (read_tuple(context, &it) != IP_PACKET)
		return -1;
	rest = (__u64)it.protocol << 32;
	if (!it.is_fragment)
		rest |= (__u64)it.source_port << 16 | it.destination_port;
	flow = mix(settings.flow_seed, both(it.source[2], it.source[3]));
	flow = mix(flow, both(it.source[0], it.source[1]));
	flow = mix(flow, both(it.destination[2], it.destination[3]));
	flow = mix(flow, both(it.destination[0], it.destination[1]));
	return mix(flow, rest) % SHARES;
}

/* Returns the word of a next hop; 0 means no route. */
static __always_inline __u64 word_of(__u32 number)
{
	/* The control plane may change the word while it is read. */
	const volatile __u64 *word = bpf_map_lookup_elem(&hops, &number);

	return word ? *word : 0;
}

static __always_inline __u32 next_hop_v4(__u32 address)
{
	__u32 key = address >> 16;
	/* The control plane may change the entries while they are read. */
	const volatile struct entries *entries = bpf_map_lookup_elem(&first_v4, &key);
	__u16 entry;

	if (!entries)
		return 0;
	entry = entries->of[address >> 8 & 0xff];
	if (!(entry & IS_BLOCK))
		return entry;
	key = entry & ~IS_BLOCK;
	entries = bpf_map_lookup_elem(&blocks_v4, &key);
	return entries ? entries->of[address & 0xff] : 0;
}

/* Looks up the next hop of an IPv4 packet. Returns FORWARDED if the packet is valid, or another outcome. */
static __always_inline int look_v4(const struct ipv4_header *ip, __u64 have, __u32 *number)
{
	__u32 length = bpf_ntohs(ip->length), source = bpf_ntohl(ip->source), destination = bpf_ntohl(ip->destination);
	const __be32 *words = (const void *)ip;
	__u64 sum = 0;

	/* The process handles IP options. */
	if (ip->version_and_words != 0x45)
		return UP;
	if (length < sizeof(*ip) || length > have)
		return BROKEN_PACKET;
#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += words[i];
	if (folded(sum) != 0xffff)
		return WRONG_CHECKSUM;
	if (is_nobody_v4(source) || source >> 28 == 14 || is_nobody_v4(destination))
		return MARTIAN;
	if (destination >> 28 == 14)
		return FOR_ANOTHER_STATION;
	*number = next_hop_v4(destination);
	return FORWARDED;
}

static __always_inline int look_v6(const struct ipv6_header *ip, __u64 have, __u32 *number)
{
	struct key_v6 key = { .length = 128 };
	__u32 *found;

	if (*(const __u8 *)ip >> 4 != 6 || sizeof(*ip) + bpf_ntohs(ip->length) > have)
		return BROKEN_PACKET;
	if (is_nobody_v6(ip->source) || is_group_v6(ip->source) || is_nobody_v6(ip->destination))
		return MARTIAN;
	if (is_group_v6(ip->destination))
		return FOR_ANOTHER_STATION;
	/* Such addresses are only valid on their link (RFC 4291 section 2.5.6). */
	if (is_link_local_v6(ip->source) || is_link_local_v6(ip->destination))
		return UP;
#pragma unroll
	for (int i = 0; i < 4; i++)
		key.address[i] = ip->destination[i];
	found = bpf_map_lookup_elem(&routes_v6, &key);
	*number = found ? *found : 0;
	return FORWARDED;
}

/* Decrements the TTL or hop limit of a packet that leaves through interface `exit`, and sets its MAC addresses. Returns
 * FORWARDED, or another outcome. */
static __always_inline int rewrite(struct xdp_md *context, __u64 word, __u32 exit)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *ethernet = data;
	struct ipv4_header *v4 = data + sizeof(*ethernet);
	struct ipv6_header *v6 = data + sizeof(*ethernet);

	if ((void *)(v4 + 1) > end)
		return BROKEN_PACKET;
	if (ethernet->type == bpf_htons(IPV4)) {
		__u16 before = *(__u16 *)&v4->hops;

		if (v4->hops <= 1 || bpf_ntohs(v4->length) > settings.interface[exit].mtu)
			return UP | IN_TROUBLE;
		v4->hops--;
		v4->checksum = ~folded((__u64)(__u16)~v4->checksum + (__u16)~before + *(__u16 *)&v4->hops);
	} else {
		if (v6->hops <= 1 || sizeof(*v6) + bpf_ntohs(v6->length) > settings.interface[exit].mtu)
			return UP | IN_TROUBLE;
		v6->hops--;
	}
#pragma unroll
	for (int i = 0; i < 3; i++) {
		ethernet->destination[i] = bpf_htons((__u16)(word >> (32 - 16 * i)));
		ethernet->source[i] = settings.interface[exit].mac[i];
	}
	return FORWARDED;
}

/* Returns the outcome of a packet for this next hop. */
static __always_inline int forward(struct xdp_md *context, __u32 number, __u32 *exit)
{
	__u64 word = word_of(number);

	if (word >> 56 == GROUP) {
		int share = share_of(context);
		__u32 key = (word & 0xff) * SHARES + share;
		const volatile __u64 *of_share;

		if (share < 0)
			return UP;
		of_share = bpf_map_lookup_elem(&shares, &key);
		word = of_share ? word_of(*of_share) : 0;
	}
	switch (word >> 56) {
	case FORWARD:
		*exit = word >> 48 & (EXITS - 1);
		return rewrite(context, word, *exit);
	case BLACKHOLE:
		return INTO_BLACKHOLE;
	case LOCAL:
		return UP;
	}
	return UP | IN_TROUBLE;
}

static __always_inline int decide(struct xdp_md *context, __u32 *exit)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *ethernet = data;
	struct ipv4_header *v4 = data + sizeof(*ethernet);
	struct ipv6_header *v6 = data + sizeof(*ethernet);
	__u32 own = settings.from & (EXITS - 1), number = 0;
	__u64 have = end - data - sizeof(*ethernet);
	int outcome;

	if (settings.from >= settings.interfaces)
		return NO_INTERFACE;
	if ((void *)(v4 + 1) > end)
		return BROKEN_PACKET;
	if (ethernet->destination[0] != settings.interface[own].mac[0] ||
	    ethernet->destination[1] != settings.interface[own].mac[1] ||
	    ethernet->destination[2] != settings.interface[own].mac[2]) {
		/* The frame has a group address, so it may be a neighbour's request for the router's address. */
		if (!(ethernet->destination[0] & 1))
			return FOR_ANOTHER_STATION;
		if (settings.interface[own].listens)
			return UP | IN_TROUBLE;
		if (ethernet->type == bpf_htons(ARP))
			return UP;
		if (ethernet->type == bpf_htons(IPV6) && (void *)(v6 + 1) <= end && v6->next == ICMPV6)
			return UP;
		return FOR_ANOTHER_STATION;
	}
	if (ethernet->type == bpf_htons(IPV4))
		outcome = look_v4(v4, have, &number);
	else if (ethernet->type == bpf_htons(IPV6))
		outcome = (void *)(v6 + 1) > end ? BROKEN_PACKET : look_v6(v6, have, &number);
	else
		return ethernet->type == bpf_htons(ARP) || settings.interface[own].listens ? UP : NEITHER_IP_NOR_ARP;
	return outcome == FORWARDED ? forward(context, number, exit) : outcome;
}

static __always_inline int has_room_for_trouble(void)
{
	return bpf_ringbuf_query(&up, BPF_RB_AVAIL_DATA) < bpf_ringbuf_query(&up, BPF_RB_RING_SIZE) / 2;
}

SEC("xdp")
int xdp_router(struct xdp_md *context)
{
	__u64 bytes = context->data_end - context->data;
	__u32 key = 0, exit = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);
	struct outcomes *sums = bpf_map_lookup_elem(&outcomes, &key);
	struct left *through;
	__u32 outcome;
	long verdict;

	if (!counters || !sums)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	outcome = decide(context, &exit);
	if (outcome & UP) {
		if ((!(outcome & IN_TROUBLE) || has_room_for_trouble()) && hand_up(context)) {
			counters->handed_up++;
			counters->dropped_bytes += bytes;
			return XDP_DROP;
		}
		outcome = TOO_MUCH;
	}
	if (outcome < OUTCOMES)
		sums->count[outcome]++;
	if (outcome != FORWARDED) {
		counters->dropped++;
		counters->dropped_bytes += bytes;
		return XDP_DROP;
	}
	verdict = leave_through(context, exit, counters, bytes);
	through = bpf_map_lookup_elem(&left, &exit);
	if (verdict == XDP_REDIRECT && through) {
		through->packets++;
		through->bytes += bytes;
	}
	return verdict;
}

char _license[] SEC("license") = "Apache-2.0";
