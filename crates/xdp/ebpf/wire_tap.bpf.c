/* Reports when measurement packets cross the wire of an observed veth interface, in either direction. The time is that
 * of the call of the sending end's driver. For senders that call the driver directly, it is the time when the driver
 * passes the frame to the receiving end, within the same call. */
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

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

/* The driver's private data follows `struct net_device`, with this alignment. */
#define NETDEV_ALIGN 32

#define VLAN 0x8100
#define SERVICE_VLAN 0x88a8
#define IPV4 0x0800
#define IPV6 0x86dd
#define UDP 17
#define GTPU_PORT 2152

/* The format of a stamp, as in crates/wire/src/stamp.rs. */
#define MAGIC 0x7a07
#define STAMP_BYTES 18

/* Read by crates/xdp/src/wire_tap/mod.rs, as are the counters below. */
struct sighting {
	/* The time on CLOCK_MONOTONIC. */
	__u64 time_ns;
	__u64 sequence;
	__u16 flow;
	/* Number of the observed interface. */
	__u8 side;
	/* 1 if the packet leaves the device, 0 if it enters. */
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
	/* Sightings that did not fit into the ring. */
	NOT_TOLD,
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The frame that this CPU is sending and that has been handled already. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} in_hand SEC(".maps");

/* Set before the program is loaded. If only one interface is observed, both entries name it. */
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

/* Finds a stamp in the packet at offset `at`, which has the EtherType `type`. Returns 0 with flow and sequence number,
 * or -1 if there is none. */
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
			/* Other protocols and fragments have no stamp. */
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
		/* The payload of the tunnel is next; packets with GTP-U extension headers are not searched. */
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

/* Returns the other end, if `device` is an end of a veth pair. */
static __always_inline struct net_device *peer_of(struct net_device *device)
{
	__u64 behind = (bpf_core_type_size(struct net_device) + NETDEV_ALIGN - 1) & ~(NETDEV_ALIGN - 1ULL);
	struct veth_priv *own = (void *)device + behind;

	return BPF_CORE_READ(own, peer);
}

/* Returns whether a frame from one end of a pair to the other crosses an observed wire, and sets its side and
 * direction. */
static __always_inline int crosses(struct net_device *from, struct net_device *to, struct sighting *seen)
{
	int side = side_of(from);

	seen->leaving = side >= 0;
	if (side < 0)
		side = side_of(to);
	seen->side = side;
	/* The private data of other drivers is not that of a veth. */
	return side >= 0 && peer_of(to) == from && peer_of(from) == to;
}

/* Reports a measurement packet. The payload of the EtherType `type` begins at `at`. */
static __always_inline void tell(const struct bpf_dynptr *frame, __be16 type, __u32 at, struct sighting *seen)
{
	if (find_stamp(frame, type, at, seen))
		return;
	/* The reader polls; waking it would disturb the measurement. */
	if (bpf_ringbuf_output(&sightings, seen, sizeof(*seen), BPF_RB_NO_WAKEUP))
		count(NOT_TOLD);
}

/* (skb, device): an ordinary sender's frame is passed to the driver. */
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

/* (skb, ...): the driver has finished with it. */
SEC("tp_btf/net_dev_xmit")
int sent(__u64 *arguments)
{
	__u32 key = 0;
	__u64 *packet = bpf_map_lookup_elem(&in_hand, &key);

	if (packet && *packet == arguments[0])
		*packet = 0;
	return 0;
}

/* (skb): the driver passes a frame without its Ethernet header to the receiving end, in the sender's call. Only this
 * program sees the frames of senders that call the driver directly: AF_XDP, and packet sockets that bypass queueing. */
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

/* The kernel allows only programs under its own licence to read its structures: this file may be used under the GPL,
 * version 2, as well. */
char _license[] SEC("license") = "Dual BSD/GPL";
