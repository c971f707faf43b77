/* Sends every frame that enters one interface out of another one, inside the kernel, and counts. One
 * copy of this program is loaded for each direction. */
#include "header_change.h"
#include <bpf/bpf_helpers.h>

/* The interface that frames leave through. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} out SEC(".maps");

/* Read by crates/port/src/xdp_forward/direction.rs. */
struct counters {
	__u64 rx_packets;
	__u64 rx_bytes;
	/* Dropped here, without room for the addresses that are to be changed. */
	__u64 too_short;
	/* Dropped here, as the outgoing interface is not there. */
	__u64 nowhere;
	/* Bytes of both. */
	__u64 dropped_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} counted SEC(".maps");

/* Set before the program is loaded and constant from then on: the verifier removes what is not used.
 * Written by crates/port/src/xdp_forward/direction.rs. */
const volatile struct header_change change;

SEC("xdp")
int xdp_forward(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u64 bytes = end - data;
	__u32 key = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);
	long verdict;

	if (!counters)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	if (!change_header(&change, data, end)) {
		counters->too_short++;
		counters->dropped_bytes += bytes;
		return XDP_DROP;
	}
	/* The last argument is the verdict where the map has no interface. */
	verdict = bpf_redirect_map(&out, 0, XDP_DROP);
	if (verdict != XDP_REDIRECT) {
		counters->nowhere++;
		counters->dropped_bytes += bytes;
	}
	return verdict;
}

char _license[] SEC("license") = "Apache-2.0";
