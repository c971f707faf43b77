/* The common part of all forwarding programs: the egress interfaces and the counters. */
#pragma once
#include "header_change.h"

/* The limit on the egress interfaces of a program. */
#ifndef EXITS
#define EXITS 1
#endif

/* The egress interfaces, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, EXITS);
	__type(key, __u32);
	__type(value, __u32);
} out SEC(".maps");

/* Read by crates/xdp/src/forward/direction.rs. */
struct counters {
	__u64 rx_packets;
	__u64 rx_bytes;
	/* Frames dropped here because they lack the addresses to change. */
	__u64 too_short;
	/* Frames dropped here because the egress interface does not exist. */
	__u64 nowhere;
	/* Bytes that entered and did not leave. */
	__u64 dropped_bytes;
	/* Frames dropped by a function. */
	__u64 dropped;
	/* Frames passed up to the process. */
	__u64 handed_up;
	/* Bytes that functions added. */
	__u64 added_bytes;
	/* Frames dropped here because the program does not support their length. */
	__u64 too_long;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counted SEC(".maps");

/* Sends a frame through the interface `exit`. `bytes` is the frame's length on arrival. Returns the XDP verdict. */
static __always_inline long leave_through(struct xdp_md *context, __u32 exit, struct counters *counters, __u64 bytes)
{
	__u64 now = context->data_end - context->data;
	/* The last argument is the verdict if the map has no interface. */
	long verdict = bpf_redirect_map(&out, exit, XDP_DROP);

	if (verdict != XDP_REDIRECT) {
		counters->nowhere++;
		counters->dropped_bytes += bytes;
	} else if (now > bytes) {
		counters->added_bytes += now - bytes;
	} else {
		counters->dropped_bytes += bytes - now;
	}
	return verdict;
}

/* Sends a frame through the only egress interface of the program, like leave_through. */
static __always_inline long leave(struct xdp_md *context, struct counters *counters, __u64 bytes)
{
	return leave_through(context, 0, counters, bytes);
}
