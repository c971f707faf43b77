/* What a program is to do. Set before it is loaded: the verifier removes what is not used. Written by
 * crates/xdp/src/functions/constants.rs. */
#pragma once
#include "../header_change.h"

/* Functions of a chain. */
#define STAGES 16
/* Outside addresses of a translator. */
#define NAT_ADDRESSES 16

enum stage_kind { HEADERS, XOR, ATS, FILTER, BALANCE, PASSES, NAT };

/* One function. */
struct stage {
	__u32 kind;
	/* Number of the function in the chain, under which its packets are counted. */
	__u32 number;
	/* Of its entries in a map. */
	__u32 first;
	__u32 count;
	/* A key, a seed, or whatever it is decided by. */
	__u64 value;
	struct header_change change;
	__u16 unused;
};

/* Of the only translator of a chain. */
struct nat_settings {
	__u64 seed;
	__u64 udp_ns;
	__u64 tcp_ns;
	__u64 tcp_closing_ns;
	__u64 icmp_ns;
	/* From one sweep to the next. */
	__u64 sweep_ns;
	__u32 mappings;
	__u32 mappings_per_host;
	/* A power of two. */
	__u32 host_buckets;
	__u32 addresses;
	__u16 first_port;
	__u16 last_port;
	/* In this machine's byte order. */
	__u32 address[NAT_ADDRESSES];
};

const volatile struct {
	__u32 stages;
	__u32 reads_clock;
	struct stage stage[STAGES];
	struct nat_settings nat;
} settings;
