/* Passes the requested frames of a receive queue to the AF_XDP socket registered for that queue. Other frames, and
 * those of queues without a socket, continue to the kernel's network stack. */
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

/* Sockets by receive queue; the array is longer than the number of queues of any NIC. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

#define RULES 8

#define VLAN 0x8100
#define SERVICE_VLAN 0x88a8
#define IPV4 0x0800
#define IPV6 0x86dd

#define HOP_BY_HOP 0
#define TCP 6
#define UDP 17
#define ROUTING 43
#define FRAGMENT 44
#define DESTINATION_OPTIONS 60

/* Limit on skipped IPv6 extension headers; frames with more go to the kernel. */
#define EXTENSIONS 6

/* The conditions of a rule. Fields with 0 match every frame, and the port range does if `last` is 0. Written by
 * crates/port/src/af_xdp/filter.rs. */
struct rule {
	__u16 type;
	__u8 any_ip;
	__u8 protocol;
	__u16 first;
	__u16 last;
};

/* Set before the program is loaded and constant from then on, so that the verifier removes unused code. */
const volatile struct {
	__u32 rules;
	struct rule rule[RULES];
	/* 1 if frames get an arrival time. */
	__u32 stamped;
} settings;

/* The arrival time before a frame, in its metadata; crates/port/src/af_xdp/stamp.rs reads it. */
struct arrival {
	__u64 mark;
	/* The time on CLOCK_MONOTONIC. */
	__u64 time_ns;
};

/* A mark that distinguishes an arrival time from old contents of that memory. */
#define ARRIVAL_MARK 0x9d1c7ab35e64f028

/* The fields of a frame that the rules match. */
struct seen {
	__u16 type;
	/* 1 if the protocol is known, which requires a packet that is not a fragment. */
	__u8 has_protocol;
	__u8 protocol;
	__u8 has_port;
	/* The destination port. */
	__u16 port;
};

struct ipv4_header {
	__u8 version_and_length;
	__u8 service;
	__be16 length;
	__be16 identification;
	__be16 fragment;
	__u8 time_to_live;
	__u8 protocol;
	__u16 checksum;
	__u8 source[4];
	__u8 destination[4];
};

struct ipv6_header {
	__be32 version;
	__be16 length;
	__u8 next;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
};

struct extension_header {
	__u8 next;
	/* The length in units of 8 bytes, without the first 8 bytes. */
	__u8 length;
	__u8 rest[6];
};

struct ports {
	__be16 source;
	__be16 destination;
};

static __always_inline void look_at_port(struct seen *seen, void *at, void *end)
{
	struct ports *ports = at;

	if (seen->protocol != TCP && seen->protocol != UDP)
		return;
	if ((void *)(ports + 1) > end)
		return;
	seen->has_port = 1;
	seen->port = bpf_ntohs(ports->destination);
}

static __always_inline void look_at_ipv4(struct seen *seen, void *at, void *end)
{
	struct ipv4_header *ip = at;
	__u32 length;

	if ((void *)(ip + 1) > end)
		return;
	length = (ip->version_and_length & 0x0f) * 4;
	/* Invalid headers and fragments match no protocol. */
	if (ip->version_and_length >> 4 != 4 || length < sizeof(*ip) || ip->fragment & bpf_htons(0x3fff))
		return;
	seen->has_protocol = 1;
	seen->protocol = ip->protocol;
	look_at_port(seen, at + length, end);
}

static __always_inline void look_at_ipv6(struct seen *seen, void *at, void *end)
{
	struct ipv6_header *ip = at;
	__u8 next;

	if ((void *)(ip + 1) > end || *(__u8 *)at >> 4 != 6)
		return;
	next = ip->next;
	at += sizeof(*ip);
#pragma unroll
	for (int i = 0; i < EXTENSIONS; i++) {
		struct extension_header *extension = at;

		if (next != HOP_BY_HOP && next != ROUTING && next != DESTINATION_OPTIONS)
			break;
		if ((void *)(extension + 1) > end)
			return;
		next = extension->next;
		at += (extension->length + 1) * 8;
	}
	if (next == HOP_BY_HOP || next == ROUTING || next == DESTINATION_OPTIONS || next == FRAGMENT)
		return;
	seen->has_protocol = 1;
	seen->protocol = next;
	look_at_port(seen, at, end);
}

static __always_inline int wants(const volatile struct rule *rule, const struct seen *seen)
{
	if (rule->type && rule->type != seen->type)
		return 0;
	if (rule->any_ip && seen->type != IPV4 && seen->type != IPV6)
		return 0;
	if (rule->protocol && (!seen->has_protocol || seen->protocol != rule->protocol))
		return 0;
	if (rule->last && (!seen->has_port || seen->port < rule->first || seen->port > rule->last))
		return 0;
	return 1;
}

static __always_inline int is_wanted(struct xdp_md *context)
{
	void *at = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ethernet_header *frame = at;
	struct seen seen = {};

	if ((void *)(frame + 1) > end)
		return 0;
	seen.type = bpf_ntohs(frame->type);
	at += sizeof(*frame);
	if (seen.type == VLAN || seen.type == SERVICE_VLAN) {
		struct ports *tag = at;

		if ((void *)(tag + 1) > end)
			return 0;
		/* The second half of a tag is the EtherType of the payload. */
		seen.type = bpf_ntohs(tag->destination);
		at += sizeof(*tag);
	}
	if (seen.type == IPV4)
		look_at_ipv4(&seen, at, end);
	else if (seen.type == IPV6)
		look_at_ipv6(&seen, at, end);
#pragma unroll
	for (int i = 0; i < RULES; i++) {
		if (i < settings.rules && wants(&settings.rule[i], &seen))
			return 1;
	}
	return 0;
}

/* If the driver has no space for metadata, the frame gets no arrival time. */
static __always_inline void write_arrival(struct xdp_md *context, __u64 time_ns)
{
	struct arrival *arrival;

	if (bpf_xdp_adjust_meta(context, -(int)sizeof(*arrival)))
		return;
	arrival = (void *)(long)context->data_meta;
	if ((void *)(arrival + 1) > (void *)(long)context->data)
		return;
	arrival->mark = ARRIVAL_MARK;
	arrival->time_ns = time_ns;
}

SEC("xdp")
int xdp_to_socket(struct xdp_md *context)
{
	__u64 time_ns = settings.stamped ? bpf_ktime_get_ns() : 0;
	__u32 queue = context->rx_queue_index;

	if (settings.rules && !is_wanted(context))
		return XDP_PASS;
	/* Frames for the kernel get no arrival time: it does not merge segments with different metadata. */
	if (settings.stamped && bpf_map_lookup_elem(&sockets, &queue))
		write_arrival(context, time_ns);
	/* The last argument is the verdict if the map has no socket. */
	return bpf_redirect_map(&sockets, queue, XDP_PASS);
}

char _license[] SEC("license") = "Apache-2.0";
