/* What every program that forwards has: the interfaces that frames leave through, and counters. */
#pragma once
#include "header_change.h"

/* Interfaces that a program's frames may leave through. */
#ifndef EXITS
#define EXITS 1
#endif

/* The interfaces that frames leave through, by number. */
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
	/* Dropped here, without room for the addresses that are to be changed. */
	__u64 too_short;
	/* Dropped here, as the outgoing interface is not there. */
	__u64 nowhere;
	/* Bytes that came in and did not go out. */
	__u64 dropped_bytes;
	/* Frames that a function keeps. */
	__u64 dropped;
	/* Frames that the process gets. */
	__u64 handed_up;
	/* Bytes that functions added. */
	__u64 added_bytes;
	/* Dropped here, longer than the program can follow. */
	__u64 too_long;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counted SEC(".maps");

/* Sends a frame that came with so many bytes on its way through an interface; the verdict. */
static __always_inline long leave_through(struct xdp_md *context, __u32 exit, struct counters *counters, __u64 bytes)
{
	__u64 now = context->data_end - context->data;
	/* The last argument is the verdict where the map has no interface. */
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

/* As above, through the only one. */
static __always_inline long leave(struct xdp_md *context, struct counters *counters, __u64 bytes)
{
	return leave_through(context, 0, counters, bytes);
}
