/* The change of the Ethernet addresses of a frame that leaves. */
#pragma once
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>

/* The origin of an address in a frame that leaves. */
enum origin {
	OF_DESTINATION,
	OF_SOURCE,
	FIXED,
};

/* Written by crates/xdp/src/forward/header_change.rs. */
struct header_change {
	__u8 destination_origin;
	__u8 source_origin;
	__u16 destination[3];
	__u16 source[3];
};

static __always_inline void set_address(__u16 *to, __u8 origin, const volatile __u16 *fixed,
					const struct ethernet_header *before)
{
#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (origin == OF_DESTINATION)
			to[i] = before->destination[i];
		else if (origin == OF_SOURCE)
			to[i] = before->source[i];
		else
			to[i] = fixed[i];
	}
}

/* Changes the addresses of a frame. Returns 0 for a frame that lacks the addresses to change. */
static __always_inline int change_header(const volatile struct header_change *change, void *data, void *end)
{
	struct ethernet_header *frame = data;
	struct ethernet_header before;

	if (change->destination_origin == OF_DESTINATION && change->source_origin == OF_SOURCE)
		return 1;
	if ((void *)(frame + 1) > end)
		return 0;
	before = *frame;
	if (change->destination_origin != OF_DESTINATION)
		set_address(frame->destination, change->destination_origin, change->destination, &before);
	if (change->source_origin != OF_SOURCE)
		set_address(frame->source, change->source_origin, change->source, &before);
	return 1;
}
