/* The settings of a program. They are set before it is loaded, so that the verifier removes unused code. Written by
 * crates/xdp/src/functions/constants.rs. */
#pragma once
#include "../header_change.h"

/* The maximum number of functions of a chain. */
#define STAGES 16
/* The maximum number of outside addresses of a translator. */
#define NAT_ADDRESSES 16

enum stage_kind { HEADERS, XOR, ATS, FILTER, BALANCE, PASSES, NAT };

/* One function. */
struct stage {
	__u32 kind;
	/* The number of the function in the chain, for its counters. */
	__u32 number;
	/* The range of its entries in a map. */
	__u32 first;
	__u32 count;
	/* The parameter of the function, such as a key or a seed. */
	__u64 value;
	struct header_change change;
	/* The chain that the function belongs to, if a classifier selects one of several chains. */
	__u16 class;
};

/* The settings of the only translator of a chain. */
struct nat_settings {
	__u64 seed;
	__u64 udp_ns;
	__u64 tcp_ns;
	__u64 tcp_closing_ns;
	__u64 icmp_ns;
	/* The interval of the sweeps. */
	__u64 sweep_ns;
	__u32 mappings;
	__u32 mappings_per_host;
	/* The number of buckets, a power of two. */
	__u32 host_buckets;
	__u32 addresses;
	__u16 first_port;
	__u16 last_port;
	/* The addresses are in this machine's byte order. */
	__u32 address[NAT_ADDRESSES];
};

const volatile struct {
	__u32 stages;
	__u32 reads_clock;
	struct stage stage[STAGES];
	struct nat_settings nat;
	/* True if a classifier selects the chain of each frame. */
	__u32 is_classified;
	__u32 class_rules;
	/* The class of frames that no rule matches. */
	__u32 default_class;
	/* The class of frames that are dropped, the highest. */
	__u32 dropped_class;
} settings;
