/* Hands every frame of a receive queue to the AF_XDP socket registered for that queue; queues without
 * one keep going to the kernel. */
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>

/* Sockets by receive queue; a longer array than any network card has queues. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

SEC("xdp")
int xdp_to_socket(struct xdp_md *context)
{
	/* The last argument is the verdict where the map has no socket. */
	return bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Apache-2.0";
