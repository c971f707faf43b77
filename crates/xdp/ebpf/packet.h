/* Headers of packets, and their checksums. */
#pragma once
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define IPV4 0x0800
#define IPV6 0x86dd
#define ARP 0x0806
#define VLAN 0x8100
#define SERVICE_VLAN 0x88a8
#define ICMP 1
#define TCP 6
#define UDP 17
#define ICMPV6 58
#define SCTP 132
/* Extension headers of IPv6. */
#define HOP_BY_HOP 0
#define ROUTING 43
#define FRAGMENT_HEADER 44
#define DESTINATION 60

/* The longest frame. The verifier can follow offsets up to this value. */
#define MOST_FRAME 0x3fff

struct ipv4_header {
	__u8 version_and_words;
	__u8 service;
	__be16 length;
	__be16 identification;
	__be16 fragment;
	__u8 hops;
	__u8 protocol;
	__u16 checksum;
	__be32 source;
	__be32 destination;
};

struct ipv6_header {
	__be32 version_class_label;
	__be16 length;
	__u8 next;
	__u8 hops;
	__be32 source[4];
	__be32 destination[4];
};

struct udp_header {
	__be16 source;
	__be16 destination;
	__be16 length;
	__u16 checksum;
};

/* A header at an offset; the caller returns if it is truncated. */
#define AT(type, offset) ({ void *place = data + ((offset) & MOST_FRAME); \
			     place + sizeof(type) > end ? (type *)0 : (type *)place; })

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline __u16 nonzero(__u16 checksum)
{
	return checksum ? checksum : 0xffff;
}

static __always_inline int is_tag(__be16 type)
{
	return type == bpf_htons(VLAN) || type == bpf_htons(SERVICE_VLAN);
}
