/* Counts the frames that a redirect did not deliver. The kernel does not report them to xdp_forward.bpf.c, which has
 * passed them on before. */
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>

/* Parts of kernel structures; their offsets are filled in when the program is loaded. */
#define OF_THE_KERNEL __attribute__((preserve_access_index))

struct net {
	__u64 net_cookie;
} OF_THE_KERNEL;

typedef struct {
	struct net *net;
} OF_THE_KERNEL possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} OF_THE_KERNEL;

/* A path from one interface to another in the namespace with that cookie, or (0, map, 0) for frames that did not reach
 * an interface. Written by crates/xdp/src/forward/refusals.rs. */
struct way {
	__u64 namespace;
	__u32 from;
	__u32 to;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	/* Space for paths between each two of 64 interfaces, and from each interface to its map. */
	__uint(max_entries, 64 * 65);
	__type(key, struct way);
	__type(value, __u64);
} refused SEC(".maps");

static __always_inline int count(struct way *way, __u64 frames)
{
	__u64 *sum = bpf_map_lookup_elem(&refused, way);

	if (sum)
		__sync_fetch_and_add(sum, frames);
	return 0;
}

/* (from_dev, to_dev, sent, drops, err): a driver was passed up to 16 frames. */
SEC("tp_btf/xdp_devmap_xmit")
int frames_not_sent(__u64 *arguments)
{
	struct net_device *from = (void *)arguments[0];
	struct net_device *to = (void *)arguments[1];
	int drops = arguments[3];
	struct way way = {};

	if (drops <= 0)
		return 0;
	way.namespace = from->nd_net.net->net_cookie;
	way.from = from->ifindex;
	way.to = to->ifindex;
	return count(&way, drops);
}

/* (dev, xdp, tgt, err, map_type, map_id, index): one frame did not get into the interface's queue. */
SEC("tp_btf/xdp_redirect_err")
int frame_not_redirected(__u64 *arguments)
{
	struct way way = { .from = arguments[5] };

	return count(&way, 1);
}

/* The kernel allows only programs under its own licence to read its structures: this file may be used under the GPL,
 * version 2, as well. */
char _license[] SEC("license") = "Dual BSD/GPL";
