/* Source NAT with port translation, with the same packets, mappings and counts as crates/functions/src/nat. */
#pragma once
#include "headers.h"
#include "mix.h"
#include "settings.h"

/* The order is that of crates/functions/src/nat/outcome.rs. Outcomes up to NAT_PASSED let the packet continue, and there
 * are at most 16 (OUTCOMES in xdp_functions.bpf.c). */
enum nat_outcome {
	TO_OUTSIDE, TO_INSIDE, NAT_ERROR, NAT_PASSED, NO_MAPPING, NOT_OURS, HAIRPIN, NO_PORT, TABLE_FULL, HOST_FULL,
	NAT_FRAGMENT, OTHER_PROTOCOL, NAT_MALFORMED,
};

/* The protocol of a port; the order is that of `Class` in crates/functions/src/nat/parser.rs. */
enum nat_class { CLASS_UDP, CLASS_TCP, CLASS_ICMP };

/* The observed events of a connection, as in crates/functions/src/nat/connection.rs. */
#define ANSWERED 1
#define ACKNOWLEDGED 2
#define FINISHED 4
#define RESET 8
#define NUMBERED 16
#define STATIC 32

#define FIN 1
#define SYN 2
#define RST 4
#define ACK 16

#define ECHO_REPLY 0
#define UNREACHABLE 3
#define SOURCE_QUENCH 4
#define ECHO_ASKED 8
#define TIME_EXCEEDED 11
#define PARAMETER_PROBLEM 12

/* The number of ports that are tried for a new mapping. */
#define TRIES 64
/* The slots per sweep and the limit on sweeps at once, as in crates/functions/src/nat/table.rs. */
#define SWEPT 64
#define MOST_SWEEPS 4
/* The hosts per bucket, as in crates/functions/src/nat/hosts.rs. */
#define HOSTS 15
#define PORTS 65536

/* A mapping, in the slot of its outside port. All of it is read and written under its lock: after a lookup the slot may
 * have passed to another inside endpoint. */
struct mapping {
	/* The key of the inside endpoint; 0 if the slot is free. */
	__u64 inside;
	__u64 last_used_ns;
	struct bpf_spin_lock lock;
	__u32 state;
	/* The sequence number that the host sends next, and the one that it expects. */
	__u32 next;
	__u32 expected;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mapping);
} nat_mappings SEC(".maps");

/* The slot of the mapping of an inside endpoint. The CPU that creates a mapping adds it here, unless there is one
 * already. The CPU that ends a mapping removes it here, after the mapping and before the counts. No CPU thus removes
 * a newer entry, and there is space for all counted mappings. A reader checks that the mapping belongs to the
 * endpoint. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} nat_inside SEC(".maps");

struct hand {
	/* The time up to which sweeps have been done. */
	__u64 swept_ns;
	struct bpf_spin_lock lock;
	/* The position at which the last sweep ended. */
	__u32 cursor;
	/* The number of mappings. */
	__u32 count;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hand);
} nat_hand SEC(".maps");

/* An inside address with its number of mappings; a count of 0 marks an empty slot. */
struct host {
	__u32 address;
	__u32 count;
};

struct host_bucket {
	struct bpf_spin_lock lock;
	__u32 unused;
	struct host host[HOSTS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct host_bucket);
} nat_hosts SEC(".maps");

/* A packet with ports, either the received one or one that an ICMP error quotes. Offsets are in bytes from the frame's
 * start; addresses and ports are in this machine's byte order. */
struct flow {
	__u32 ip;
	__u32 transport;
	__u32 end;
	__u32 source;
	__u32 destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 class;
	__u8 flags;
	/* The next fields are those of the ICMP error that quotes the packet. */
	__u8 is_quoted;
	__u8 unused;
	__u32 error_ip;
	__u32 error;
	__u32 error_source;
	__u32 error_destination;
	/* The next fields are those of a TCP segment; `segment_end` is the sequence number after it. */
	__u32 sequence;
	__u32 acknowledgement;
	__u32 segment_end;
};

struct tcp_header {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 words;
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
};

struct icmp_header {
	__u8 kind;
	__u8 code;
	__u16 checksum;
	__be16 identifier;
	__be16 sequence;
};

/* Parses a quoted packet. Returns its outcome, or -1 for a flow. */
static __always_inline int read_quoted(struct xdp_md *context, struct flow *flow, __u32 have)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ipv4_header *ip = AT(struct ipv4_header, flow->ip);
	struct icmp_header *icmp;
	struct ports *ports;
	__u32 header_len;
	__u8 protocol;

	if (!ip || !have || ip->version_and_words >> 4 != 4)
		return NAT_MALFORMED;
	header_len = (ip->version_and_words & 15) * 4;
	if (header_len < sizeof(*ip) || have < header_len + sizeof(*icmp))
		return NAT_MALFORMED;
	if (ip->fragment & bpf_htons(0x1fff))
		return NAT_FRAGMENT;
	flow->source = bpf_ntohl(ip->source);
	flow->destination = bpf_ntohl(ip->destination);
	flow->transport = flow->ip + header_len;
	protocol = ip->protocol;
	if (protocol == ICMP) {
		icmp = AT(struct icmp_header, flow->transport);
		if (!icmp)
			return NAT_MALFORMED;
		if (icmp->kind != ECHO_REPLY && icmp->kind != ECHO_ASKED)
			return OTHER_PROTOCOL;
		flow->class = CLASS_ICMP;
		flow->source_port = flow->destination_port = bpf_ntohs(icmp->identifier);
		return -1;
	}
	if (protocol != UDP && protocol != TCP)
		return OTHER_PROTOCOL;
	flow->class = protocol == UDP ? CLASS_UDP : CLASS_TCP;
	ports = AT(struct ports, flow->transport);
	if (!ports)
		return NAT_MALFORMED;
	flow->source_port = bpf_ntohs(ports->source);
	flow->destination_port = bpf_ntohs(ports->destination);
	return -1;
}

/* Parses a frame. Returns its outcome, or -1 for a flow. */
static __always_inline int read_flow(struct xdp_md *context, struct flow *flow)
{
	struct headers it = {};
	int kind = read_ipv4(context, &it);
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ipv4_header *ip = AT(struct ipv4_header, it.ip);

	if (kind != IP_PACKET || !ip)
		return kind == NO_IP ? NAT_PASSED : NAT_MALFORMED;
	if (it.is_fragment)
		return NAT_FRAGMENT;
	flow->ip = it.ip;
	flow->transport = it.transport;
	flow->end = it.transport + it.have;
	flow->source = bpf_ntohl(ip->source);
	flow->destination = bpf_ntohl(ip->destination);
	if (it.protocol == UDP) {
		struct udp_header *udp = AT(struct udp_header, it.transport);

		if (!udp || it.have < sizeof(*udp) || bpf_ntohs(udp->length) < sizeof(*udp) ||
		    bpf_ntohs(udp->length) > it.have)
			return NAT_MALFORMED;
		flow->class = CLASS_UDP;
		flow->source_port = bpf_ntohs(udp->source);
		flow->destination_port = bpf_ntohs(udp->destination);
		return -1;
	}
	if (it.protocol == TCP) {
		struct tcp_header *tcp = AT(struct tcp_header, it.transport);
		__u32 header_len;

		if (!tcp || it.have < sizeof(*tcp))
			return NAT_MALFORMED;
		header_len = (tcp->words >> 4) * 4;
		if (header_len < sizeof(*tcp) || header_len > it.have)
			return NAT_MALFORMED;
		flow->class = CLASS_TCP;
		flow->source_port = bpf_ntohs(tcp->source);
		flow->destination_port = bpf_ntohs(tcp->destination);
		flow->flags = tcp->flags;
		flow->sequence = bpf_ntohl(tcp->sequence);
		flow->acknowledgement = bpf_ntohl(tcp->acknowledgement);
		flow->segment_end = flow->sequence + it.have - header_len + !!(tcp->flags & SYN) + !!(tcp->flags & FIN);
		return -1;
	}
	if (it.protocol == ICMP) {
		struct icmp_header *icmp = AT(struct icmp_header, it.transport);

		if (!icmp || it.have < sizeof(*icmp))
			return NAT_MALFORMED;
		if (icmp->kind == ECHO_REPLY || icmp->kind == ECHO_ASKED) {
			flow->class = CLASS_ICMP;
			flow->source_port = flow->destination_port = bpf_ntohs(icmp->identifier);
			return -1;
		}
		if (icmp->kind != UNREACHABLE && icmp->kind != SOURCE_QUENCH && icmp->kind != TIME_EXCEEDED &&
		    icmp->kind != PARAMETER_PROBLEM)
			return OTHER_PROTOCOL;
		flow->is_quoted = 1;
		flow->error_ip = it.ip;
		flow->error = it.transport;
		flow->error_source = flow->source;
		flow->error_destination = flow->destination;
		flow->ip = it.transport + sizeof(*icmp);
		return read_quoted(context, flow, it.have - sizeof(*icmp));
	}
	return OTHER_PROTOCOL;
}

static __always_inline __u64 key_of(__u8 class, __u32 address, __u16 port)
{
	return ((__u64)class + 1) << 48 | (__u64)address << 16 | port;
}

/* Returns the number of an outside address from 0, or -1. */
static __always_inline int number_of(__u32 address)
{
	for (int i = 0; i < NAT_ADDRESSES; i++) {
		if (i < settings.nat.addresses && settings.nat.address[i] == address)
			return i;
	}
	return -1;
}

static __always_inline __u32 slot_of(__u8 class, __u32 number, __u16 port)
{
	return (class * settings.nat.addresses + number) * PORTS + port;
}

static __always_inline int is_open(__u32 state)
{
	return (state & (ANSWERED | ACKNOWLEDGED | FINISHED | RESET)) == (ANSWERED | ACKNOWLEDGED);
}

static __always_inline __u64 timeout_ns(__u64 inside, __u32 state)
{
	switch (inside >> 48) {
	case CLASS_UDP + 1:
		return settings.nat.udp_ns;
	case CLASS_TCP + 1:
		return is_open(state) ? settings.nat.tcp_ns : settings.nat.tcp_closing_ns;
	default:
		return settings.nat.icmp_ns;
	}
}

static __always_inline int is_live(const struct mapping *it, __u64 now_ns)
{
	__u64 inside = it->inside, last_used_ns = it->last_used_ns;

	if (!inside)
		return 0;
	return it->state & STATIC || now_ns <= last_used_ns ||
	       now_ns - last_used_ns <= timeout_ns(inside, it->state);
}

static __always_inline struct host_bucket *bucket_of(__u32 address)
{
	__u32 index = mix(~settings.nat.seed, address) & (settings.nat.host_buckets - 1);

	return bpf_map_lookup_elem(&nat_hosts, &index);
}

/* Adds a mapping to the count of a host. Returns TO_OUTSIDE, or the packet's outcome if the host cannot have another
 * one. */
__noinline int add_host(__u32 address)
{
	struct host_bucket *bucket = bucket_of(address);
	int outcome = TABLE_FULL, empty = -1;

	if (!bucket)
		return TABLE_FULL;
	bpf_spin_lock(&bucket->lock);
	for (int i = 0; i < HOSTS; i++) {
		struct host *host = &bucket->host[i];

		if (!host->count) {
			if (empty < 0)
				empty = i;
		} else if (host->address == address) {
			if (host->count < settings.nat.mappings_per_host) {
				host->count++;
				outcome = TO_OUTSIDE;
			} else {
				outcome = HOST_FULL;
			}
			empty = -1;
			break;
		}
	}
	if (empty >= 0 && empty < HOSTS) {
		bucket->host[empty].address = address;
		bucket->host[empty].count = 1;
		outcome = TO_OUTSIDE;
	}
	bpf_spin_unlock(&bucket->lock);
	return outcome;
}

/* Subtracts a mapping from the count of a host. */
__noinline int remove_host(__u32 address)
{
	struct host_bucket *bucket = bucket_of(address);

	if (!bucket)
		return 0;
	bpf_spin_lock(&bucket->lock);
	for (int i = 0; i < HOSTS; i++) {
		struct host *host = &bucket->host[i];

		if (host->count && host->address == address) {
			host->count--;
			break;
		}
	}
	bpf_spin_unlock(&bucket->lock);
	return 0;
}

/* Counts a mapping. Returns 0 if the table is full. */
static __always_inline int count_one(void)
{
	__u32 zero = 0;
	struct hand *hand = bpf_map_lookup_elem(&nat_hand, &zero);
	int has_room;

	if (!hand)
		return 0;
	bpf_spin_lock(&hand->lock);
	has_room = hand->count < settings.nat.mappings;
	hand->count += has_room;
	bpf_spin_unlock(&hand->lock);
	return has_room;
}

static __always_inline void uncount_one(void)
{
	__u32 zero = 0;
	struct hand *hand = bpf_map_lookup_elem(&nat_hand, &zero);

	if (!hand)
		return;
	bpf_spin_lock(&hand->lock);
	hand->count--;
	bpf_spin_unlock(&hand->lock);
}

/* Subtracts a mapping that has ended from the counts. */
static __always_inline void forget(__u32 address)
{
	remove_host(address);
	uncount_one();
}

/* Spreads a hash over 0 to `count` - 1. */
static __always_inline __u64 below(__u64 hash, __u64 count)
{
	return ((hash >> 32) * count) >> 32;
}

struct search {
	__u64 inside;
	__u64 now_ns;
	/* The start of the inside endpoint's sequence of candidates. */
	__u64 start;
	__u32 base;
	__u32 first;
	__u32 count;
	__u32 found;
	__u32 slot;
};

/* Takes the slot of the next candidate, if it is free. */
static long try_port(__u32 index, struct search *search)
{
	__u32 slot = search->base + search->first + 2 * (__u32)below(mix(search->start, index), search->count);
	struct mapping *it = bpf_map_lookup_elem(&nat_mappings, &slot);
	__u64 before = 0;
	int is_free;

	if (!it)
		return 1;
	/* If ports run out, most slots are in use. A slot that seems free is checked again under its lock. */
	if (is_live(it, search->now_ns))
		return 0;
	bpf_spin_lock(&it->lock);
	is_free = !is_live(it, search->now_ns);
	if (is_free) {
		before = it->inside;
		it->inside = search->inside;
		it->last_used_ns = search->now_ns;
		it->state = it->next = it->expected = 0;
	}
	bpf_spin_unlock(&it->lock);
	if (!is_free)
		return 0;
	if (before) {
		bpf_map_delete_elem(&nat_inside, &before);
		forget(before >> 16);
	}
	search->slot = slot;
	search->found = 1;
	return 1;
}

struct sweep {
	__u64 now_ns;
	__u32 cursor;
	__u32 slots;
};

/* Ends a mapping that has timed out. */
static long sweep_one(__u32 index, struct sweep *sweep)
{
	__u32 slot = sweep->cursor;
	struct mapping *it = bpf_map_lookup_elem(&nat_mappings, &slot);
	__u64 before = 0;

	sweep->cursor = slot + 1 >= sweep->slots ? 0 : slot + 1;
	/* Most slots are empty; a slot that is taken at this moment has not timed out. */
	if (!it || !it->inside)
		return 0;
	bpf_spin_lock(&it->lock);
	if (it->inside && !is_live(it, sweep->now_ns)) {
		before = it->inside;
		it->inside = 0;
	}
	bpf_spin_unlock(&it->lock);
	if (before) {
		bpf_map_delete_elem(&nat_inside, &before);
		forget(before >> 16);
	}
	return 0;
}

/* Ends the mappings that have timed out among the next slots. The number of slots depends on the time since the last
 * sweep. */
__noinline int sweep_due(__u64 now_ns)
{
	struct sweep sweep = { .now_ns = now_ns, .slots = 3 * settings.nat.addresses * PORTS };
	__u64 due, interval = settings.nat.sweep_ns;
	__u32 zero = 0;
	struct hand *hand = bpf_map_lookup_elem(&nat_hand, &zero);

	if (!hand || now_ns < hand->swept_ns + interval)
		return 0;
	bpf_spin_lock(&hand->lock);
	/* Another CPU may have swept in between. */
	due = now_ns < hand->swept_ns ? 0 : (now_ns - hand->swept_ns) / interval;
	hand->swept_ns = due < MOST_SWEEPS ? hand->swept_ns + due * interval : now_ns;
	if (due > MOST_SWEEPS)
		due = MOST_SWEEPS;
	sweep.cursor = hand->cursor;
	hand->cursor = (sweep.cursor + due * SWEPT) % sweep.slots;
	bpf_spin_unlock(&hand->lock);
	bpf_loop(due * SWEPT, sweep_one, &sweep, 0);
	return 0;
}

static __always_inline void free_slot(__u32 slot, __u64 inside)
{
	struct mapping *it = bpf_map_lookup_elem(&nat_mappings, &slot);

	if (!it)
		return;
	bpf_spin_lock(&it->lock);
	if (it->inside == inside)
		it->inside = 0;
	bpf_spin_unlock(&it->lock);
}

/* Creates a mapping for an inside endpoint. Returns TO_OUTSIDE, or the packet's outcome if there is no mapping. If
 * another CPU creates the mapping first, that one is used. */
__noinline int make_mapping(__u64 inside, __u64 now_ns, __u32 class)
{
	__u32 address = inside >> 16;
	__u32 number = below(mix(settings.nat.seed, address), settings.nat.addresses);
	struct search search = { .inside = inside, .now_ns = now_ns };
	int outcome;

	sweep_due(now_ns);
	if (!count_one())
		return TABLE_FULL;
	outcome = add_host(address);
	if (outcome != TO_OUTSIDE) {
		uncount_one();
		return outcome;
	}
	search.start = mix(settings.nat.seed, inside);
	search.base = slot_of(class, number, 0);
	search.first = settings.nat.first_port + ((settings.nat.first_port ^ inside) & 1);
	if (search.first <= settings.nat.last_port) {
		search.count = (settings.nat.last_port + 2 - search.first) / 2;
		bpf_loop(TRIES, try_port, &search, 0);
	}
	outcome = NO_PORT;
	if (search.found) {
		long answer = bpf_map_update_elem(&nat_inside, &inside, &search.slot, BPF_NOEXIST);

		if (!answer)
			return TO_OUTSIDE;
		free_slot(search.slot, inside);
		outcome = answer == -EEXIST ? TO_OUTSIDE : TABLE_FULL;
	}
	forget(address);
	return outcome;
}

static __always_inline __u64 change16(__u16 from, __u16 to)
{
	return (__u64)(__u16)~from + to;
}

static __always_inline __u64 change32(__u32 from, __u32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline __u16 update(__u16 checksum, __u64 change)
{
	return ~folded((__u64)(__u16)~checksum + change);
}

/* Replaces the source or destination address of an IPv4 header. Returns the change of its checksum. */
static __always_inline __u64 set_address_of(struct ipv4_header *ip, int is_source, __be32 from, __be32 to)
{
	__u16 before = ip->checksum;

	ip->checksum = update(before, change32(from, to));
	if (is_source)
		ip->source = to;
	else
		ip->destination = to;
	return change16(before, ip->checksum);
}

/* Replaces one end of a flow, in network byte order, and adds the change of a checksum over the packet to `sum`.
 * Returns 0 if the packet is truncated. */
static __always_inline int replace_end(struct xdp_md *context, const struct flow *flow, int is_source, __be32 address,
				       __be16 port, __u64 *sum)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__be32 old_address = bpf_htonl(is_source ? flow->source : flow->destination);
	__be16 old_port = bpf_htons(is_source ? flow->source_port : flow->destination_port);
	__u64 addresses = change32(old_address, address), ports = change16(old_port, port);
	struct ipv4_header *ip = AT(struct ipv4_header, flow->ip);
	__u16 *checksum, before;
	__be16 *place;
	__u32 at;

	if (!ip)
		return 0;
	*sum += addresses + set_address_of(ip, is_source, old_address, address) + ports;
	at = flow->class == CLASS_ICMP ? 4 : is_source ? 0 : 2;
	place = AT(__be16, flow->transport + at);
	if (!place)
		return 0;
	*place = port;
	at = flow->transport + (flow->class == CLASS_UDP ? 6 : flow->class == CLASS_TCP ? 16 : 2);
	/* A quoted packet may end before its checksum. */
	if (at + 2 > flow->end)
		return 1;
	checksum = AT(__u16, at);
	if (!checksum)
		return 0;
	before = *checksum;
	if (flow->class == CLASS_ICMP)
		*checksum = update(before, ports);
	else if (flow->class == CLASS_TCP)
		*checksum = update(before, addresses + ports);
	else if (before)
		*checksum = nonzero(update(before, addresses + ports));
	*sum += change16(before, *checksum);
	return 1;
}

/* Replaces one end of a flow like replace_end, and also the other end of an ICMP error that quotes the flow. */
static __always_inline int replace_all(struct xdp_md *context, const struct flow *flow, int is_source, __be32 address,
				       __be16 port)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct icmp_header *icmp;
	struct ipv4_header *ip;
	__u64 sum = 0;

	if (!replace_end(context, flow, is_source, address, port, &sum))
		return 0;
	if (!flow->is_quoted)
		return 1;
	ip = AT(struct ipv4_header, flow->error_ip);
	icmp = AT(struct icmp_header, flow->error);
	if (!ip || !icmp)
		return 0;
	set_address_of(ip, !is_source, bpf_htonl(is_source ? flow->error_destination : flow->error_source), address);
	icmp->checksum = update(icmp->checksum, sum);
	return 1;
}

/* Returns whether the first of two sequence numbers is before the other. */
static __always_inline int is_behind(__u32 first, __u32 other)
{
	return (__s32)(other - first) > 0;
}

/* Updates a mapping for a TCP segment from inside. Returns 1 if the timeout of the mapping restarts. */
static __always_inline int left(struct mapping *it, const struct flow *flow)
{
	__u32 state = it->state;

	if (flow->flags & RST) {
		if (!(state & NUMBERED) || flow->sequence != it->next)
			return 0;
		it->state = state | RESET;
		return 1;
	}
	if (flow->flags & SYN) {
		if (!is_open(state))
			state &= STATIC;
		it->next = flow->segment_end;
	} else {
		state &= ~RESET;
		if (!(state & NUMBERED) || is_behind(it->next, flow->segment_end))
			it->next = flow->segment_end;
		if (flow->flags & ACK) {
			if (!(state & ACKNOWLEDGED) || is_behind(it->expected, flow->acknowledgement))
				it->expected = flow->acknowledgement;
			state |= ACKNOWLEDGED;
		}
		if (flow->flags & FIN)
			state |= FINISHED;
	}
	it->state = state | NUMBERED;
	return 1;
}

/* Updates a mapping for a TCP segment from outside, like `left` for one from inside. */
static __always_inline int came(struct mapping *it, const struct flow *flow)
{
	if (!(flow->flags & RST)) {
		it->state |= ANSWERED;
		return 0;
	}
	if (!is_open(it->state) || flow->sequence != it->expected)
		return 0;
	it->state |= RESET;
	return 1;
}

/* Records in the mapping of a slot that a packet leaves. Returns 0 if the mapping belongs to another inside endpoint,
 * or if the packet is quoted and the mapping has timed out. */
static __always_inline int leave_by(__u32 slot, __u64 inside, const struct flow *flow, __u64 now_ns)
{
	struct mapping *it = bpf_map_lookup_elem(&nat_mappings, &slot);
	int is_its;

	if (!it)
		return 0;
	bpf_spin_lock(&it->lock);
	is_its = it->inside == inside;
	if (is_its && flow->is_quoted) {
		is_its = is_live(it, now_ns);
	} else if (is_its) {
		if (!is_live(it, now_ns)) {
			it->last_used_ns = now_ns;
			it->state = it->next = it->expected = 0;
		}
		if (flow->class != CLASS_TCP || left(it, flow))
			it->last_used_ns = now_ns;
	}
	bpf_spin_unlock(&it->lock);
	return is_its;
}

static __always_inline int outwards(struct xdp_md *context, const struct flow *flow, __u64 now_ns)
{
	__u32 destination = flow->is_quoted ? flow->error_destination : flow->destination;
	__u32 slot = 0, *place, number;
	__u64 inside;
	int made;

	if (number_of(destination) >= 0)
		return HAIRPIN;
	inside = flow->is_quoted ? key_of(flow->class, flow->destination, flow->destination_port) :
				   key_of(flow->class, flow->source, flow->source_port);
	place = bpf_map_lookup_elem(&nat_inside, &inside);
	if (place)
		slot = *place;
	if (!place || !leave_by(slot, inside, flow, now_ns)) {
		if (flow->is_quoted)
			return NO_MAPPING;
		made = make_mapping(inside, now_ns, flow->class);
		if (made != TO_OUTSIDE)
			return made;
		place = bpf_map_lookup_elem(&nat_inside, &inside);
		if (!place)
			return TABLE_FULL;
		slot = *place;
		/* Another CPU is ending the old mapping at this moment. */
		if (!leave_by(slot, inside, flow, now_ns))
			return TABLE_FULL;
	}
	number = slot / PORTS % settings.nat.addresses;
	if (number >= NAT_ADDRESSES)
		return NO_MAPPING;
	if (!replace_all(context, flow, !flow->is_quoted, bpf_htonl(settings.nat.address[number]), bpf_htons(slot)))
		return NAT_MALFORMED;
	return flow->is_quoted ? NAT_ERROR : TO_OUTSIDE;
}

static __always_inline int inwards(struct xdp_md *context, const struct flow *flow, __u64 now_ns)
{
	__u32 outside = flow->is_quoted ? flow->error_destination : flow->destination;
	int number = number_of(outside);
	struct mapping *it;
	__u64 inside = 0;
	__u32 slot;

	if (number < 0 || (flow->is_quoted && flow->source != outside))
		return NOT_OURS;
	slot = slot_of(flow->class, number, flow->is_quoted ? flow->source_port : flow->destination_port);
	it = bpf_map_lookup_elem(&nat_mappings, &slot);
	if (!it)
		return NO_MAPPING;
	bpf_spin_lock(&it->lock);
	if (is_live(it, now_ns)) {
		inside = it->inside;
		if (!flow->is_quoted && flow->class == CLASS_TCP && came(it, flow))
			it->last_used_ns = now_ns;
	}
	bpf_spin_unlock(&it->lock);
	if (!inside)
		return NO_MAPPING;
	if (!replace_all(context, flow, flow->is_quoted, bpf_htonl(inside >> 16), bpf_htons(inside)))
		return NAT_MALFORMED;
	return flow->is_quoted ? NAT_ERROR : TO_INSIDE;
}

__noinline int nat(struct xdp_md *context, __u32 is_outwards, __u64 now_ns)
{
	struct flow flow = {};
	int outcome = read_flow(context, &flow);

	if (outcome >= 0)
		return outcome;
	return is_outwards ? outwards(context, &flow, now_ns) : inwards(context, &flow, now_ns);
}
