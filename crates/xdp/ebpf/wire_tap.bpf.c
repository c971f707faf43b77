/* Tells when measurement packets cross the wire of a watched veth interface, in either direction: when the
 * sending end's driver is called, or, for those who call it with no ceremony, when it hands over to the
 * receiving end, within the same call. */
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

/* Parts of kernel structures; where they lie is filled in when the program is loaded. */
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

struct veth_priv {
	struct net_device *peer;
} OF_THE_KERNEL;

struct sk_buff {
	struct net_device *dev;
	__be16 protocol;
} OF_THE_KERNEL;

struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

extern int bpf_dynptr_from_skb(struct sk_buff *skb, __u64 flags, struct bpf_dynptr *to) __ksym;

/* Drivers' data lies behind `struct net_device`, so aligned. */
#define NETDEV_ALIGN 32

#define VLAN 0x8100
#define SERVICE_VLAN 0x88a8
#define IPV4 0x0800
#define IPV6 0x86dd
#define UDP 17
#define GTPU_PORT 2152

/* crates/wire/src/stamp.rs */
#define MAGIC 0x7a07
#define STAMP_BYTES 18

/* Read by crates/xdp/src/wire_tap/mod.rs, as are the counters below. */
struct sighting {
	/* CLOCK_MONOTONIC. */
	__u64 time_ns;
	__u64 sequence;
	__u16 flow;
	/* Which watched interface. */
	__u8 side;
	/* Out of the device; else into it. */
	__u8 leaving;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} sightings SEC(".maps");

/* Read by crates/xdp/src/wire_tap/driver.rs. */
enum {
	/* Frames of all kinds that crossed. */
	CROSSED,
	/* Sightings that the ring was too full for. */
	NOT_TOLD,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The frame that this CPU is sending across, dealt with already. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} in_hand SEC(".maps");

/* Set before the program is loaded. The same interface twice where only one is watched. */
const volatile struct {
	__u64 namespace;
	__u32 interface[2];
} watched;

static __always_inline void count(__u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &which);

	if (counter)
		*counter += 1;
}

static __always_inline int get(const struct bpf_dynptr *frame, void *to, __u32 at, __u32 size)
{
	return bpf_dynptr_read(to, size, frame, at, 0);
}

/* 0, and flow and sequence number, where a stamp is found in what follows the EtherType `type` at `at`. */
static __always_inline int find_stamp(const struct bpf_dynptr *frame, __be16 type, __u32 at,
				      struct sighting *seen)
{
	__u8 bytes[20];

#pragma unroll
	for (int tag = 0; tag < 2; tag++) {
		if (type != bpf_htons(VLAN) && type != bpf_htons(SERVICE_VLAN))
			break;
		if (get(frame, &type, at + 2, 2))
			return -1;
		at += 4;
	}
	for (int layer = 0; layer < 2; layer++) {
		if (type == bpf_htons(IPV4)) {
			if (get(frame, bytes, at, 20))
				return -1;
			/* More fragments, or not the first one. */
			if (bytes[9] != UDP || bytes[6] & 0x3f || bytes[7])
				return -1;
			at += (bytes[0] & 15) * 4;
		} else if (type == bpf_htons(IPV6)) {
			if (get(frame, bytes, at, 8) || bytes[6] != UDP)
				return -1;
			at += 40;
		} else {
			return -1;
		}
		if (get(frame, bytes, at, 8))
			return -1;
		at += 8;
		if (layer == 1 || (bytes[2] << 8 | bytes[3]) != GTPU_PORT)
			break;
		/* What is in the tunnel; headers that extend GTP-U's own are not looked behind. */
		if (get(frame, bytes, at, 8) || bytes[0] & 4)
			return -1;
		at += bytes[0] & 7 ? 12 : 8;
		if (get(frame, bytes, at, 1))
			return -1;
		type = bytes[0] >> 4 == 4 ? bpf_htons(IPV4) : bpf_htons(IPV6);
	}
	if (get(frame, bytes, at, STAMP_BYTES) || (bytes[0] << 8 | bytes[1]) != MAGIC)
		return -1;
	seen->flow = bytes[2] << 8 | bytes[3];
	seen->sequence = (__u64)bytes[4] << 40 | (__u64)bytes[5] << 32 | (__u64)bytes[6] << 24 |
			 bytes[7] << 16 | bytes[8] << 8 | bytes[9];
	return 0;
}

static __always_inline int side_of(struct net_device *device)
{
	__u32 index = BPF_CORE_READ(device, ifindex);

	if (index != watched.interface[0] && index != watched.interface[1])
		return -1;
	if (BPF_CORE_READ(device, nd_net.net, net_cookie) != watched.namespace)
		return -1;
	return index == watched.interface[0] ? 0 : 1;
}

/* The other end, as far as `device` is an end of a veth pair. */
static __always_inline struct net_device *peer_of(struct net_device *device)
{
	__u64 behind = (bpf_core_type_size(struct net_device) + NETDEV_ALIGN - 1) & ~(NETDEV_ALIGN - 1ULL);
	struct veth_priv *own = (void *)device + behind;

	return BPF_CORE_READ(own, peer);
}

/* Whether a frame from one end of a pair to the other crosses a wire that is watched, and how. */
static __always_inline int crosses(struct net_device *from, struct net_device *to, struct sighting *seen)
{
	int side = side_of(from);

	seen->leaving = side >= 0;
	if (side < 0)
		side = side_of(to);
	seen->side = side;
	/* Drivers' data of other interfaces is no veth's. */
	return side >= 0 && peer_of(to) == from && peer_of(from) == to;
}

/* Of measurement packets. What follows the EtherType `type` begins at `at`. */
static __always_inline void tell(const struct bpf_dynptr *frame, __be16 type, __u32 at, struct sighting *seen)
{
	if (find_stamp(frame, type, at, seen))
		return;
	/* The reader looks by itself: waking it would disturb what is measured. */
	if (bpf_ringbuf_output(&sightings, seen, sizeof(*seen), BPF_RB_NO_WAKEUP))
		count(NOT_TOLD);
}

/* (skb, device): an ordinary sender's frame is given to the driver. */
SEC("tp_btf/net_dev_start_xmit")
int sending(__u64 *arguments)
{
	struct sighting seen = { .time_ns = bpf_ktime_get_ns() };
	struct sk_buff *skb = (void *)arguments[0];
	struct net_device *from = (void *)arguments[1];
	struct bpf_dynptr frame;
	__u32 key = 0;
	__be16 type;
	__u64 *packet;

	if (!crosses(from, peer_of(from), &seen))
		return 0;
	count(CROSSED);
	packet = bpf_map_lookup_elem(&in_hand, &key);
	if (packet)
		*packet = (__u64)skb;
	if (!bpf_dynptr_from_skb(skb, 0, &frame) && !get(&frame, &type, 12, 2))
		tell(&frame, type, 14, &seen);
	return 0;
}

/* (skb, ...): the driver has done with it. */
SEC("tp_btf/net_dev_xmit")
int sent(__u64 *arguments)
{
	__u32 key = 0;
	__u64 *packet = bpf_map_lookup_elem(&in_hand, &key);

	if (packet && *packet == arguments[0])
		*packet = 0;
	return 0;
}

/* (skb): the driver gives a frame to the receiving end, in the sender's call. Its Ethernet header is off. Here
 * come the frames of those who go straight to the driver: AF_XDP, and packet sockets that bypass queueing. */
SEC("tp_btf/netif_rx")
int arriving(__u64 *arguments)
{
	struct sighting seen = { .time_ns = bpf_ktime_get_ns() };
	struct sk_buff *skb = (void *)arguments[0];
	struct net_device *to = skb->dev;
	struct bpf_dynptr frame;
	__u32 key = 0;
	__u64 *packet;

	if (!crosses(peer_of(to), to, &seen))
		return 0;
	packet = bpf_map_lookup_elem(&in_hand, &key);
	if (packet && *packet == (__u64)skb)
		return 0;
	count(CROSSED);
	if (!bpf_dynptr_from_skb(skb, 0, &frame))
		tell(&frame, skb->protocol, 0, &seen);
	return 0;
}

/* The kernel lets only programs under its own licence look into its structures: this file may be used
 * under the GPL, version 2, as well. */
char _license[] SEC("license") = "Dual BSD/GPL";
