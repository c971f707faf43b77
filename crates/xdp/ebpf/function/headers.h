/* The headers of a frame, parsed as in crates/function/src/datagram.rs and tuple.rs, with the same result for every
 * frame. */
#pragma once
#include "../packet.h"

enum kind { IP_PACKET, NO_IP, MALFORMED };

/* An IP packet. Offsets are in bytes from the frame's start. */
struct headers {
	__u32 ip;
	__u32 transport;
	/* The number of bytes after `transport`, according to the IP header. */
	__u32 have;
	__u8 version;
	__u8 protocol;
	/* 1 for any fragment, including the first. */
	__u8 is_fragment;
	/* 1 for fragments other than the first. */
	__u8 is_later;
};

struct walk {
	struct xdp_md *context;
	__u32 at;
	__u32 end;
	__u8 protocol;
	__u8 is_fragment;
	__u8 is_later;
	__u8 is_malformed;
};

/* Skips one IPv6 extension header. Returns 1 after the last. */
static long walk_on(__u32 index, struct walk *walk)
{
	__u32 length = 8, have = walk->end - walk->at;
	__u8 front[4];

	if (walk->is_later)
		return 1;
	if (walk->protocol != HOP_BY_HOP && walk->protocol != ROUTING && walk->protocol != DESTINATION &&
	    walk->protocol != FRAGMENT_HEADER)
		return 1;
	/* No extension header is shorter. */
	if (have < length || bpf_xdp_load_bytes(walk->context, walk->at, front, sizeof(front))) {
		walk->is_malformed = 1;
		return 1;
	}
	if (walk->protocol == FRAGMENT_HEADER) {
		walk->is_fragment = 1;
		walk->is_later = front[2] || front[3] & 0xf8;
	} else {
		length += front[1] * 8;
	}
	if (have < length) {
		walk->is_malformed = 1;
		return 1;
	}
	walk->protocol = front[0];
	walk->at += length;
	return 0;
}

/* Returns the EtherType after the addresses and up to two tags, and the offset of the payload in `at`; 0 if the frame
 * is truncated. */
static __always_inline __be16 *read_type(void *data, void *end, __u32 *at)
{
	__be16 *type = data + 12;

	*at = 14;
	if ((void *)(type + 1) > end)
		return 0;
	if (!is_tag(*type))
		return type;
	type = data + 16;
	*at = 18;
	if ((void *)(type + 1) > end)
		return 0;
	if (!is_tag(*type))
		return type;
	type = data + 20;
	*at = 22;
	return (void *)(type + 1) > end ? 0 : type;
}

/* Parses an IPv4 packet at offset `at`. */
static __always_inline int read_ipv4_at(void *data, void *end, __u32 at, struct headers *it)
{
	struct ipv4_header *ip = AT(struct ipv4_header, at);
	__u32 length, header_len, have = end - data - at;

	if (!ip || ip->version_and_words >> 4 != 4)
		return MALFORMED;
	header_len = (ip->version_and_words & 15) * 4;
	length = bpf_ntohs(ip->length);
	if (header_len < sizeof(*ip) || length < header_len || length > have)
		return MALFORMED;
	it->version = 4;
	it->protocol = ip->protocol;
	it->is_later = !!(ip->fragment & bpf_htons(0x1fff));
	it->is_fragment = !!(ip->fragment & bpf_htons(0x3fff));
	it->transport = at + header_len;
	it->have = length - header_len;
	return IP_PACKET;
}

/* Parses like `read_headers`, but returns NO_IP for everything except IPv4. */
static __always_inline int read_ipv4(struct xdp_md *context, struct headers *it)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__be16 *type = read_type(data, end, &it->ip);

	if (!type)
		return MALFORMED;
	return *type == bpf_htons(IPV4) ? read_ipv4_at(data, end, it->ip, it) : NO_IP;
}

static __always_inline int read_headers(struct xdp_md *context, struct headers *it)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 length, have, at;
	__be16 *type = read_type(data, end, &at);

	if (!type)
		return MALFORMED;
	have = end - data - at;
	it->ip = at;
	if (*type == bpf_htons(IPV4))
		return read_ipv4_at(data, end, at, it);
	if (*type == bpf_htons(IPV6)) {
		struct ipv6_header *ip = AT(struct ipv6_header, at);
		struct walk walk = { .context = context };

		if (!ip || *(__u8 *)ip >> 4 != 6)
			return MALFORMED;
		length = bpf_ntohs(ip->length);
		if (length > have - sizeof(*ip))
			return MALFORMED;
		walk.protocol = ip->next;
		walk.at = at + sizeof(*ip);
		walk.end = walk.at + length;
		/* No extension header is shorter than 8 bytes. */
		bpf_loop(MOST_FRAME / 8, walk_on, &walk, 0);
		if (walk.is_malformed)
			return MALFORMED;
		it->version = 6;
		it->protocol = walk.protocol;
		it->is_later = walk.is_later;
		it->is_fragment = walk.is_fragment;
		it->transport = walk.at;
		it->have = walk.end - walk.at;
		return IP_PACKET;
	}
	return NO_IP;
}

enum datagram_kind { DATAGRAM, OTHER, BROKEN };

/* Parses a UDP datagram that is not a fragment; `bytes` is its length with the header. */
static __always_inline int read_datagram(struct xdp_md *context, struct headers *it, __u32 *bytes)
{
	int kind = read_headers(context, it);
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct udp_header *udp;

	if (kind != IP_PACKET)
		return kind == NO_IP ? OTHER : BROKEN;
	if (it->protocol != UDP || it->is_fragment)
		return OTHER;
	udp = AT(struct udp_header, it->transport);
	if (!udp || it->have < sizeof(*udp))
		return BROKEN;
	*bytes = bpf_ntohs(udp->length);
	return *bytes < sizeof(*udp) || *bytes > it->have ? BROKEN : DATAGRAM;
}

/* The key of a flow; IPv4 addresses are mapped IPv6 addresses. */
struct tuple {
	/* The addresses are in network byte order. */
	__be32 source[4];
	__be32 destination[4];
	/* The ports are in this machine's byte order. */
	__u16 source_port;
	__u16 destination_port;
	__u8 protocol;
	__u8 has_ports;
	__u8 is_fragment;
	/* The differentiated services code point. */
	__u8 dscp;
};

struct ports {
	__be16 source;
	__be16 destination;
};

static __always_inline int read_tuple(struct xdp_md *context, struct tuple *tuple)
{
	struct headers it = {};
	int kind = read_headers(context, &it);
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct ports *ports;

	if (kind != IP_PACKET)
		return kind;
	if (it.version == 4) {
		struct ipv4_header *ip = AT(struct ipv4_header, it.ip);

		if (!ip)
			return MALFORMED;
		tuple->source[2] = tuple->destination[2] = bpf_htonl(0xffff);
		tuple->source[3] = ip->source;
		tuple->destination[3] = ip->destination;
		tuple->dscp = ip->service >> 2;
	} else {
		struct ipv6_header *ip = AT(struct ipv6_header, it.ip);

		if (!ip)
			return MALFORMED;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			tuple->source[i] = ip->source[i];
			tuple->destination[i] = ip->destination[i];
		}
		tuple->dscp = bpf_ntohl(ip->version_class_label) >> 22 & 63;
	}
	tuple->protocol = it.protocol;
	tuple->is_fragment = it.is_fragment;
	if (it.is_later || (it.protocol != TCP && it.protocol != UDP && it.protocol != SCTP))
		return IP_PACKET;
	ports = AT(struct ports, it.transport);
	if (!ports || it.have < sizeof(*ports))
		return MALFORMED;
	tuple->has_ports = 1;
	tuple->source_port = bpf_ntohs(ports->source);
	tuple->destination_port = bpf_ntohs(ports->destination);
	return IP_PACKET;
}

/* Returns whether an address has the prefix `bits`. */
static __always_inline int has(const __be32 *bits, const __be32 *mask, const __be32 *address)
{
	return (address[0] & mask[0]) == bits[0] && (address[1] & mask[1]) == bits[1] &&
	       (address[2] & mask[2]) == bits[2] && (address[3] & mask[3]) == bits[3];
}
