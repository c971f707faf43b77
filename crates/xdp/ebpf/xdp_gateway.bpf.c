/* The fast path of the mobile gateway (crates/gateway/src): looks bearers up, rewrites packets, and sends them
 * out of another interface. Packets that it does not handle (echo requests, unknown tunnels, packets too big and other
 * rare cases) are passed up to the process, which handles them with the same bearers. One copy is loaded for each
 * direction. */
#include "forwarding.h"
#include "hand_up.h"
#include "packet.h"

#define GTPU_PORT 2152
#define HOPS 64
#define NEIGHBOUR_SOLICITATION 135

/* GTP-U (3GPP TS 29.281). */
#define ECHO_REQUEST 1
#define ECHO_RESPONSE 2
#define ERROR_INDICATION 26
#define END_MARKER 254
#define G_PDU 255
#define VERSION_1_GTP 0x30
#define HAS_EXTENSIONS 4
#define HAS_ANY 7
#define PDU_SESSION_CONTAINER 0x85

/* Limit on extension headers; packets with longer chains are passed up. */
#define EXTENSIONS 4
/* The addresses of one IP version that users may not send to: those of the gateway, and those of its control. */
#define CLOSED 11
#define NO_QFI 0xff

/* The order is that of crates/gateway/src/outcome.rs. */
enum outcome {
	RELAYED, ENCAPSULATED, DECAPSULATED, PASSED, ECHO_ANSWERED, CONSUMED, ERROR_INDICATED, UNKNOWN_TEID,
	UNKNOWN_TEID_UNTOLD, UNKNOWN_USER, OTHER, TOLD_TO_DROP, GATE_CLOSED, OVER_RATE, NOT_HELD, MALFORMED,
	BAD_CHECKSUM, BAD_VERSION, UNKNOWN_MESSAGE, UNKNOWN_EXTENSION, NOT_IP, TO_GATEWAY, WRONG_PORT, FRAGMENT,
	NO_HOPS_LEFT, TOO_BIG, NO_ROOM, ECHO_UNANSWERED,
	OUTCOMES,
};

/* A verdict: the packet is passed up. If the ring is full, the outcome is that of the lower bits. */
#define UP_OR 64

/* The order is that of crates/gateway/src/bearer.rs. */
enum action { RELAY = 1, ENCAPSULATE, DECAPSULATE, DROP, HOLD, BLOCK, SORT, METERED = 0x80 };

/* As in crates/function/src/meter.rs: units of time per nanosecond, fractional bits of costs, and the limits of a
 * burst. */
#define UNITS_PER_NS 64
#define COST_DIGITS 14
#define BURST_NS 10000000ULL
#define BURST_BYTES 15000
/* An attempt fails only if another CPU has counted a packet by the same meter in between. */
#define TRIES 16

/* All maps here except the counters are written by crates/xdp/src/gateway/maps.rs. */
struct bearer {
	__u32 teid;
	__u16 path;
	__u8 qfi;
	__u8 action;
};

struct path {
	__be32 local[4];
	__be32 remote[4];
	/* The IP version, 4 or 6; 0 if there is no path. */
	__u32 version;
	/* The number of the last egress port of its packets, from 1. */
	__u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct bearer);
} bearers SEC(".maps");

/* Paths by number, from 1. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct path);
} paths SEC(".maps");

/* The addresses that user packets from a tunnel may come from; 0 for none. */
struct sources {
	__be32 v4;
	__be32 v6[2];
};

/* Sources by number, from 1. The TEID of a bearer that decapsulates is such a number, or 0 if all may pass. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sources);
} sources SEC(".maps");

/* The numbers of a bearer's meters, from 1; 0 if there is none. */
struct metered {
	__u32 meter[2];
};

/* The meters of bearers with the flag METERED, by the key of `bearers`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct metered);
} metered SEC(".maps");

struct meter {
	/* The time at which the bytes so far would have arrived at the meter's rate, in units of 1/UNITS_PER_NS ns. */
	__u64 due;
	/* The cost of a byte, in the same unit, with COST_DIGITS fractional bits. */
	__u64 cost;
};

/* Meters by number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meter);
} meters SEC(".maps");

struct outcomes {
	__u64 count[OUTCOMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct outcomes);
} outcomes SEC(".maps");

/* Set before the program is loaded; written by crates/xdp/src/gateway/constants.rs. */
const volatile struct {
	struct header_change change;
	__u8 passes_others;
	__u8 answers_neighbours;
	/* 1 if tunnels enter through the port of this direction. */
	__u8 takes_tunnels;
	__u32 mtu;
	/* The number of the egress port, from 1. */
	__u32 to_port;
	__u32 own_v4_count;
	__u32 own_v6_count;
	__u32 closed_v4_count;
	__u32 closed_v6_count;
	/* The gateway's own addresses are the first. */
	__be32 closed_v4[CLOSED];
	__be32 closed_v6[CLOSED][4];
} settings;

struct gtpu_header {
	__u8 flags;
	__u8 message;
	__be16 length;
	__be32 teid;
};

struct gtpu_options {
	__be16 sequence;
	__u8 n_pdu;
	__u8 next;
};

/* Offsets are in bytes from the frame's start. */
struct seen {
	__u32 ip;
	__u32 udp;
	__u32 gtpu;
	/* The start and the end of the user packet. */
	__u32 payload;
	__u32 end;
	__u8 version;
	__u8 message;
	__u8 puzzles_end;
	__u8 puzzles_all;
	__be32 teid;
};

static __always_inline __u64 sum_of(const __be32 *words, int count)
{
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < count; i++)
		sum += words[i];
	return sum;
}

/* Returns the sum of a header without options, including its checksum. */
static __always_inline __u64 sum_of_header(const struct ipv4_header *ip)
{
	return sum_of((const __be32 *)ip, sizeof(*ip) / 4);
}

/* Returns whether the address is among the first `count`. */
static __always_inline int is_among_v4(__be32 address, __u32 count)
{
#pragma unroll
	for (int i = 0; i < CLOSED; i++) {
		if (i < count && settings.closed_v4[i] == address)
			return 1;
	}
	return 0;
}

static __always_inline int is_among_v6(const __be32 *address, __u32 count)
{
#pragma unroll
	for (int i = 0; i < CLOSED; i++) {
		if (i < count && settings.closed_v6[i][0] == address[0] && settings.closed_v6[i][1] == address[1] &&
		    settings.closed_v6[i][2] == address[2] && settings.closed_v6[i][3] == address[3])
			return 1;
	}
	return 0;
}

static __always_inline __u64 key_of_prefix(const __be32 *address)
{
	__u64 prefix = (__u64)bpf_ntohl(address[0]) << 32 | bpf_ntohl(address[1]);

	/* Prefixes below the limit are special addresses; their keys are used for TEIDs, IPv4 addresses and rules. */
	return prefix < 4ULL << 32 ? 0 : prefix;
}

/* Returns the length of the IP packet at `at`, of which `have` bytes are present, and sets its version and traffic
 * class. Returns 0 if it is not an IP packet. */
static __always_inline __u32 user_packet(void *data, void *end, __u32 at, __u32 have, __u8 *service, __u8 *version)
{
	struct ipv4_header *v4;
	struct ipv6_header *v6;
	__u8 *first = AT(__u8, at);
	__u32 length;

	if (!first || !have)
		return 0;
	*version = *first >> 4;
	if (*version == 4) {
		v4 = AT(struct ipv4_header, at);
		if (!v4 || have < sizeof(*v4))
			return 0;
		length = bpf_ntohs(v4->length);
		*service = v4->service;
		if ((v4->version_and_words & 15) < 5 || length < (v4->version_and_words & 15) * 4 || length > have)
			return 0;
		return length;
	}
	if (*version == 6) {
		v6 = AT(struct ipv6_header, at);
		if (!v6 || have < sizeof(*v6))
			return 0;
		length = sizeof(*v6) + bpf_ntohs(v6->length);
		*service = bpf_ntohl(v6->version_class_label) >> 20;
		return length > have ? 0 : length;
	}
	return 0;
}

/* Returns whether the IP packet at `at` is addressed to the gateway or its control, which users may not send to. */
static __always_inline int goes_to_gateway(void *data, void *end, __u32 at, __u8 version)
{
	struct ipv4_header *v4;
	struct ipv6_header *v6;

	if (version == 4) {
		v4 = AT(struct ipv4_header, at);
		return v4 && is_among_v4(v4->destination, settings.closed_v4_count);
	}
	v6 = AT(struct ipv6_header, at);
	return v6 && is_among_v6(v6->destination, settings.closed_v6_count);
}

/* Returns whether the IP packet at `at` has one of the sources of that number. */
static __always_inline int comes_from(void *data, void *end, __u32 at, __u8 version, __u32 number)
{
	struct sources *from = bpf_map_lookup_elem(&sources, &number);
	struct ipv4_header *v4;
	struct ipv6_header *v6;

	if (!from)
		return 0;
	if (version == 4) {
		v4 = AT(struct ipv4_header, at);
		return v4 && from->v4 && v4->source == from->v4;
	}
	v6 = AT(struct ipv6_header, at);
	return v6 && (from->v6[0] || from->v6[1]) && v6->source[0] == from->v6[0] && v6->source[1] == from->v6[1];
}

/* A copy of a frame's Ethernet addresses and tags. */
struct front {
	__u16 half[11];
};

static __always_inline void read_front(struct front *front, const __u16 *from, __u32 length)
{
#pragma unroll
	for (int i = 0; i < 11; i++) {
		if (i * 2 < length)
			front->half[i] = from[i];
	}
}

/* Writes the copy to the frame's start, with a new EtherType. */
static __always_inline int write_front(struct xdp_md *context, const struct front *front, __u32 length, __be16 type)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u16 *to = data;

	if (data + sizeof(*front) > end)
		return 0;
#pragma unroll
	for (int i = 0; i < 11; i++) {
		if (i * 2 + 2 < length)
			to[i] = front->half[i];
		else if (i * 2 < length)
			to[i] = type;
	}
	return 1;
}

/* Truncates the frame to `length` bytes. */
static __always_inline int cut(struct xdp_md *context, __u32 length)
{
	__u32 bytes = context->data_end - context->data;

	return length == bytes || !bpf_xdp_adjust_tail(context, (int)length - (int)bytes);
}

static __always_inline void leaves(struct path *path)
{
	/* The field is written only when it changes, because other CPUs read it. */
	if (path->port != settings.to_port)
		path->port = settings.to_port;
}

static __always_inline int relay(struct xdp_md *context, const struct seen *seen, const struct bearer *bearer,
				 struct path *path)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	/* The change of the UDP checksum by the new addresses and TEID. */
	__u64 change = (__u64)(__u32)~seen->teid + bpf_htonl(bearer->teid);
	struct gtpu_header *gtpu;
	struct udp_header *udp;

	if (seen->puzzles_all)
		return UNKNOWN_EXTENSION;
	if (seen->version == 4) {
		struct ipv4_header *ip = AT(struct ipv4_header, seen->ip);
		__u64 addresses;
		__u16 before;

		if (!ip)
			return MALFORMED;
		if (ip->hops <= 1)
			return NO_HOPS_LEFT;
		if (path->version != 4)
			return UP_OR | NO_ROOM;
		addresses = (__u64)(__u32)~ip->source + (__u32)~ip->destination + path->local[0] + path->remote[0];
		change += addresses;
		before = *(__u16 *)&ip->hops;
		ip->hops--;
		ip->checksum = ~folded((__u64)(__u16)~ip->checksum + (__u16)~before + *(__u16 *)&ip->hops + addresses);
		ip->source = path->local[0];
		ip->destination = path->remote[0];
	} else {
		struct ipv6_header *ip = AT(struct ipv6_header, seen->ip);

		if (!ip)
			return MALFORMED;
		if (ip->hops <= 1)
			return NO_HOPS_LEFT;
		if (path->version != 6)
			return UP_OR | NO_ROOM;
		ip->hops--;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			change += (__u64)(__u32)~ip->source[i] + (__u32)~ip->destination[i];
			change += (__u64)path->local[i] + path->remote[i];
			ip->source[i] = path->local[i];
			ip->destination[i] = path->remote[i];
		}
	}
	udp = AT(struct udp_header, seen->udp);
	if (!udp)
		return MALFORMED;
	/* A checksum of 0 means that there is none. */
	if (udp->checksum)
		udp->checksum = nonzero(~folded((__u16)~udp->checksum + change));
	gtpu = AT(struct gtpu_header, seen->gtpu);
	if (!gtpu)
		return MALFORMED;
	gtpu->teid = bpf_htonl(bearer->teid);
	leaves(path);
	return RELAYED;
}

static __always_inline int decapsulate(struct xdp_md *context, const struct seen *seen, __u32 from)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u8 service, version;
	struct front front;
	__u32 user_len;

	if (seen->puzzles_end)
		return UNKNOWN_EXTENSION;
	user_len = user_packet(data, end, seen->payload, seen->end - seen->payload, &service, &version);
	if (!user_len)
		return NOT_IP;
	/* The process counts packets from wrong sources. */
	if (from && !comes_from(data, end, seen->payload, version, from))
		return UP_OR | NO_ROOM;
	if (goes_to_gateway(data, end, seen->payload, version))
		return TO_GATEWAY;
	if (data + sizeof(front) > end)
		return MALFORMED;
	read_front(&front, data, seen->ip);
	if (!cut(context, seen->payload + user_len) || bpf_xdp_adjust_head(context, seen->payload - seen->ip))
		return NO_ROOM;
	if (!write_front(context, &front, seen->ip, bpf_htons(version == 4 ? IPV4 : IPV6)))
		return MALFORMED;
	return DECAPSULATED;
}

static __always_inline int encapsulate(struct xdp_md *context, __u32 ip_at, const struct bearer *bearer,
				       struct path *path)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 gtpu_len = bearer->qfi == NO_QFI ? 8 : 16;
	__u32 added = sizeof(struct ipv4_header) + sizeof(struct udp_header) + gtpu_len;
	struct {
		struct ipv4_header ip;
		struct udp_header udp;
		struct gtpu_header gtpu;
	} *outer;
	__u8 service, version;
	struct front front;
	__u32 user_len;
	__u8 *container;

	user_len = user_packet(data, end, ip_at, end - data - ip_at, &service, &version);
	if (!user_len)
		return NOT_IP;
	/* UDP over IPv6 requires a checksum over the whole packet. */
	if (path->version != 4)
		return UP_OR | NO_ROOM;
	if (added + user_len > settings.mtu)
		return UP_OR | TOO_BIG;
	if (data + sizeof(front) > end)
		return MALFORMED;
	read_front(&front, data, ip_at);
	if (!cut(context, ip_at + user_len) || bpf_xdp_adjust_head(context, -(int)added))
		return NO_ROOM;
	if (!write_front(context, &front, ip_at, bpf_htons(IPV4)))
		return MALFORMED;
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	outer = data + (ip_at & 31);
	if ((void *)(outer + 1) > end)
		return MALFORMED;
	outer->ip = (struct ipv4_header){
		.version_and_words = 0x45,
		.service = service,
		.length = bpf_htons(added + user_len),
		.fragment = bpf_htons(0x4000),
		.hops = HOPS,
		.protocol = UDP,
		.source = path->local[0],
		.destination = path->remote[0],
	};
	outer->ip.checksum = ~folded(sum_of_header(&outer->ip));
	outer->udp = (struct udp_header){
		.source = bpf_htons(GTPU_PORT),
		.destination = bpf_htons(GTPU_PORT),
		.length = bpf_htons(sizeof(outer->udp) + gtpu_len + user_len),
	};
	outer->gtpu = (struct gtpu_header){
		.flags = VERSION_1_GTP | (bearer->qfi == NO_QFI ? 0 : HAS_EXTENSIONS),
		.message = G_PDU,
		.length = bpf_htons(gtpu_len - sizeof(outer->gtpu) + user_len),
		.teid = bpf_htonl(bearer->teid),
	};
	if (bearer->qfi != NO_QFI) {
		container = (void *)(outer + 1);
		if (container + 8 > (__u8 *)end)
			return MALFORMED;
		/* The sequence and N-PDU numbers are unused; a PDU session container towards the user follows (TS 38.415). */
		container[0] = container[1] = container[2] = 0;
		container[3] = PDU_SESSION_CONTAINER;
		container[4] = 1;
		container[5] = 0;
		container[6] = bearer->qfi;
		container[7] = 0;
	}
	leaves(path);
	return ENCAPSULATED;
}

static __always_inline struct path *path_of(const struct bearer *bearer)
{
	__u32 number = bearer->path;
	struct path *path = bpf_map_lookup_elem(&paths, &number);

	return path && path->version ? path : 0;
}

static __always_inline struct meter *meter_of(__u32 number)
{
	return number ? bpf_map_lookup_elem(&meters, &number) : 0;
}

static __always_inline int passes(const struct meter *meter, __u64 due, __u64 now)
{
	__u64 burst = (BURST_BYTES * meter->cost) >> COST_DIGITS;

	if (burst < BURST_NS * UNITS_PER_NS)
		burst = BURST_NS * UNITS_PER_NS;
	return due <= now + burst;
}

static __always_inline __u64 price(const struct meter *meter, __u64 bytes)
{
	return (bytes * meter->cost + (1 << COST_DIGITS) - 1) >> COST_DIGITS;
}

/* Counts a packet if it passes. Returns whether it passes. */
static __always_inline int charge(struct meter *meter, __u64 now, __u64 bytes)
{
	__u64 cost = price(meter, bytes);

	for (int i = 0; i < TRIES; i++) {
		__u64 due = *(volatile __u64 *)&meter->due;

		if (!passes(meter, due, now))
			return 0;
		if (__sync_val_compare_and_swap(&meter->due, due, (due < now ? now : due) + cost) == due)
			return 1;
	}
	return 0;
}

/* Returns the outcome of a packet that is about to leave and contains `bytes` bytes of the user's. Only packets that
 * leave are counted. */
static __always_inline int police(__u64 key, __u64 bytes, int outcome)
{
	struct metered *of_bearer = bpf_map_lookup_elem(&metered, &key);
	__u64 now = bpf_ktime_get_ns() * UNITS_PER_NS;
	struct meter *first, *second;

	if (!of_bearer)
		return outcome;
	first = meter_of(of_bearer->meter[0]);
	second = meter_of(of_bearer->meter[1]);
	if (second && !passes(second, *(volatile __u64 *)&second->due, now))
		return OVER_RATE;
	if (first && !charge(first, now, bytes))
		return OVER_RATE;
	if (second && !charge(second, now, bytes)) {
		/* Another CPU was faster, so this one does not count the packet either. */
		if (first)
			__sync_fetch_and_add(&first->due, -price(first, bytes));
		return OVER_RATE;
	}
	return outcome;
}

/* Handles a packet outside of tunnels, which may be addressed to a user. */
static __always_inline int plain(struct xdp_md *context, __u32 ip_at, __u64 key)
{
	struct bearer *found = key ? bpf_map_lookup_elem(&bearers, &key) : 0;
	struct bearer bearer;
	struct path *path;
	__u8 is_metered;
	__u64 bytes;
	int outcome;

	if (!found)
		return UNKNOWN_USER;
	bearer = *found;
	is_metered = bearer.action & METERED;
	bearer.action &= ~METERED;
	if (bearer.action == HOLD)
		return NOT_HELD;
	if (bearer.action == BLOCK)
		return GATE_CLOSED;
	/* Only the process evaluates rules. */
	if (bearer.action == SORT)
		return UP_OR | NO_ROOM;
	path = bearer.action == ENCAPSULATE ? path_of(&bearer) : 0;
	if (!path)
		return TOLD_TO_DROP;
	outcome = encapsulate(context, ip_at, &bearer, path);
	if (!is_metered || outcome != ENCAPSULATED)
		return outcome;
	/* The headers that encapsulation added are not counted. */
	bytes = context->data_end - context->data - ip_at;
	bytes -= sizeof(struct ipv4_header) + sizeof(struct udp_header) + (bearer.qfi == NO_QFI ? 8 : 16);
	return police(key, bytes & 0xffff, outcome);
}

/* Handles a GTP-U message. */
static __always_inline int tunnelled(struct xdp_md *context, const struct seen *seen)
{
	int is_user_packet = seen->message == G_PDU;
	__u64 key = bpf_ntohl(seen->teid);
	struct bearer *found, bearer;
	struct path *path;
	__u8 is_metered;
	int outcome;

	if (!is_user_packet && seen->message != END_MARKER) {
		if (seen->message == ECHO_REQUEST)
			return UP_OR | ECHO_UNANSWERED;
		if (seen->message == ECHO_RESPONSE)
			return UP_OR | CONSUMED;
		return seen->message == ERROR_INDICATION ? ERROR_INDICATED : UNKNOWN_MESSAGE;
	}
	found = key ? bpf_map_lookup_elem(&bearers, &key) : 0;
	if (!found)
		return is_user_packet ? UP_OR | UNKNOWN_TEID_UNTOLD : UNKNOWN_TEID_UNTOLD;
	bearer = *found;
	is_metered = bearer.action & METERED;
	bearer.action &= ~METERED;
	if (bearer.action == RELAY) {
		path = path_of(&bearer);
		if (!path)
			return TOLD_TO_DROP;
		outcome = relay(context, seen, &bearer, path);
		if (!is_metered || !is_user_packet || outcome != RELAYED)
			return outcome;
		return police(key, (seen->end - seen->payload) & 0xffff, outcome);
	}
	if (bearer.action == DECAPSULATE) {
		if (!is_user_packet)
			return CONSUMED;
		outcome = decapsulate(context, seen, bearer.teid);
		if (!is_metered || outcome != DECAPSULATED)
			return outcome;
		return police(key, (context->data_end - context->data - seen->ip) & 0xffff, outcome);
	}
	if (bearer.action == SORT)
		return UP_OR | NO_ROOM;
	if (bearer.action == HOLD)
		return NOT_HELD;
	return bearer.action == BLOCK ? GATE_CLOSED : TOLD_TO_DROP;
}

/* Parses a UDP datagram of at most `have` bytes at `seen->udp`. Returns -1 for GTP-U, or the packet's outcome. */
static __always_inline int read_gtpu(void *data, void *end, struct seen *seen, __u32 have)
{
	struct udp_header *udp = AT(struct udp_header, seen->udp);
	struct gtpu_header *gtpu;
	struct gtpu_options *options;
	__u32 length, at, behind;
	__u8 next;

	if (!udp || have < sizeof(*udp))
		return MALFORMED;
	length = bpf_ntohs(udp->length);
	if (length < sizeof(*udp) || length > have)
		return MALFORMED;
	if (udp->destination != bpf_htons(GTPU_PORT))
		return OTHER;
	have = length - sizeof(*udp);
	seen->gtpu = seen->udp + sizeof(*udp);
	gtpu = AT(struct gtpu_header, seen->gtpu);
	if (!gtpu || have < sizeof(*gtpu))
		return MALFORMED;
	if ((gtpu->flags & 0xf0) != VERSION_1_GTP)
		return BAD_VERSION;
	length = bpf_ntohs(gtpu->length);
	if (length > have - sizeof(*gtpu))
		return MALFORMED;
	seen->message = gtpu->message;
	seen->teid = gtpu->teid;
	at = seen->gtpu + sizeof(*gtpu);
	behind = at + length;
	seen->end = behind;
	if (gtpu->flags & HAS_ANY) {
		options = AT(struct gtpu_options, at);
		if (!options || length < sizeof(*options))
			return MALFORMED;
		next = gtpu->flags & HAS_EXTENSIONS ? options->next : 0;
		at += sizeof(*options);
		for (int i = 0; i < EXTENSIONS && next; i++) {
			__u8 *units = AT(__u8, at), *last;

			if (!units || at >= behind || !*units || at + *units * 4 > behind)
				return MALFORMED;
			if (next & 0x80 && next != PDU_SESSION_CONTAINER && next != 0xc0 && next != 0x82) {
				seen->puzzles_end = 1;
				if ((next & 0xc0) == 0xc0)
					seen->puzzles_all = 1;
			}
			at += *units * 4;
			last = AT(__u8, at - 1);
			if (!last)
				return MALFORMED;
			next = *last;
		}
		if (next)
			return UP_OR | NO_ROOM;
	}
	seen->payload = at;
	return -1;
}

static __always_inline int decide(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *ethernet = data;
	struct seen seen = { .ip = sizeof(*ethernet) };
	__be16 *type, *second;
	__u32 have, length;
	int outcome;

	if (end - data > MOST_FRAME)
		return UP_OR | NO_ROOM;
	if ((void *)(ethernet + 1) > end)
		return MALFORMED;
	type = &ethernet->type;
	if (is_tag(*type)) {
		second = data + 16;
		if ((void *)(second + 1) > end)
			return MALFORMED;
		type = second;
		seen.ip = 18;
		if (is_tag(*second)) {
			type = data + 20;
			if ((void *)(type + 1) > end)
				return MALFORMED;
			seen.ip = 22;
		}
	}
	have = end - data - seen.ip;
	if (*type == bpf_htons(IPV4)) {
		struct ipv4_header *ip = AT(struct ipv4_header, seen.ip);

		if (!ip || ip->version_and_words >> 4 != 4)
			return MALFORMED;
		length = bpf_ntohs(ip->length);
		if (ip->version_and_words != 0x45)
			return UP_OR | NO_ROOM;
		if (length < sizeof(*ip) || length > have)
			return MALFORMED;
		if (folded(sum_of_header(ip)) != 0xffff)
			return BAD_CHECKSUM;
		if (!is_among_v4(ip->destination, settings.own_v4_count))
			return plain(context, seen.ip, 1ULL << 32 | bpf_ntohl(ip->destination));
		if (ip->protocol != UDP)
			return OTHER;
		if (ip->fragment & bpf_htons(0x3fff))
			return FRAGMENT;
		seen.version = 4;
		seen.udp = seen.ip + sizeof(*ip);
		have = length - sizeof(*ip);
	} else if (*type == bpf_htons(IPV6)) {
		struct ipv6_header *ip = AT(struct ipv6_header, seen.ip);

		if (!ip || *(__u8 *)ip >> 4 != 6)
			return MALFORMED;
		length = bpf_ntohs(ip->length);
		if (length > have - sizeof(*ip))
			return MALFORMED;
		if (!is_among_v6(ip->destination, settings.own_v6_count))
			return plain(context, seen.ip, key_of_prefix(ip->destination));
		/* Extension headers: hop by hop, routing, fragment, destination. */
		if (ip->next == 0 || ip->next == 43 || ip->next == 44 || ip->next == 60)
			return UP_OR | NO_ROOM;
		if (ip->next != UDP)
			return OTHER;
		seen.version = 6;
		seen.udp = seen.ip + sizeof(*ip);
		have = length;
	} else {
		return OTHER;
	}
	outcome = read_gtpu(data, end, &seen, have);
	if (outcome >= 0)
		return outcome;
	return settings.takes_tunnels ? tunnelled(context, &seen) : WRONG_PORT;
}

/* Returns whether a frame that is not for the gateway is ARP or a neighbour solicitation, with up to two tags. */
static __always_inline int asks_neighbour(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 at = 12;
	__be16 *type = AT(__be16, at);
	struct ipv6_header *ip;
	__u8 *message;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (type && is_tag(*type)) {
			at += 4;
			type = AT(__be16, at);
		}
	}
	if (!type)
		return 0;
	if (*type == bpf_htons(ARP))
		return 1;
	if (*type != bpf_htons(IPV6))
		return 0;
	ip = AT(struct ipv6_header, at + 2);
	message = AT(__u8, at + 2 + sizeof(*ip));
	return ip && message && ip->next == ICMPV6 && *message == NEIGHBOUR_SOLICITATION;
}

SEC("xdp")
int xdp_gateway(struct xdp_md *context)
{
	__u64 bytes = context->data_end - context->data;
	__u32 key = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);
	struct outcomes *sums = bpf_map_lookup_elem(&outcomes, &key);
	void *data, *end;
	__u32 outcome;

	if (!counters || !sums)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	outcome = decide(context);
	if ((outcome == OTHER || outcome == UNKNOWN_USER) && settings.answers_neighbours && asks_neighbour(context))
		outcome |= UP_OR;
	if (outcome & UP_OR) {
		if (hand_up(context)) {
			counters->handed_up++;
			counters->dropped_bytes += bytes;
			return XDP_DROP;
		}
		outcome &= UP_OR - 1;
	}
	if ((outcome == OTHER || outcome == UNKNOWN_USER) && settings.passes_others)
		outcome = PASSED;
	if (outcome < OUTCOMES)
		sums->count[outcome]++;
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if (outcome > PASSED) {
		counters->dropped++;
		counters->dropped_bytes += bytes;
		return XDP_DROP;
	}
	if (!change_header(&settings.change, data, end)) {
		counters->too_short++;
		counters->dropped_bytes += bytes;
		return XDP_DROP;
	}
	return leave(context, counters, bytes);
}

char _license[] SEC("license") = "Apache-2.0";
