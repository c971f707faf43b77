/* Sends every frame that enters one interface out of another one, inside the kernel, and counts. One copy of this
 * program is loaded for each direction. */
#include "forwarding.h"

/* Set before the program is loaded and constant from then on, so that the verifier removes unused code. Written by
 * crates/xdp/src/forward/direction.rs. */
const volatile struct header_change change;

SEC("xdp")
int xdp_forward(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u64 bytes = end - data;
	__u32 key = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);

	if (!counters)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	if (!change_header(&change, data, end)) {
		counters->too_short++;
		counters->dropped_bytes += bytes;
		return XDP_DROP;
	}
	return leave(context, counters, bytes);
}

char _license[] SEC("license") = "Apache-2.0";
