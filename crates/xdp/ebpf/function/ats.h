/* Two timestamps after UDP payloads (crates/functions/src/ats.rs). */
#pragma once
#include "headers.h"

/* The order is that of the function's outcomes. */
enum ats_outcome { ATS_STAMPED, ATS_PASSED, ATS_TOO_BIG, ATS_NO_ROOM, ATS_MALFORMED };

#define STAMPS_LEN 16
#define MOVED 32

/* Moves the first `length` bytes forward by the length of the stamps. Returns 0 if the driver has no headroom for
 * that. */
__noinline int move_forward(struct xdp_md *context, __u32 length)
{
	void *data, *end, *place;

	if (bpf_xdp_adjust_head(context, -STAMPS_LEN))
		return 0;
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	place = data;
	for (__u32 i = 0, steps = length / MOVED; i < MOST_FRAME / MOVED; i++, place += MOVED) {
		__u64 *words = place;

		if (i >= steps || place + STAMPS_LEN + MOVED > end)
			break;
#pragma unroll
		for (int j = 0; j < MOVED / 8; j++)
			words[j] = words[j + STAMPS_LEN / 8];
	}
	place = data + ((length / MOVED * MOVED) & MOST_FRAME);
	for (__u32 i = 0, rest = length % MOVED; i < MOVED - 1; i++, place++) {
		__u8 *bytes = place;

		if (i >= rest || place + STAMPS_LEN + 1 > end)
			break;
		bytes[0] = bytes[STAMPS_LEN];
	}
	return 1;
}

/* Makes a frame end `STAMPS_LEN` bytes after `stop`. Returns 0 if that fails. */
static __always_inline int make_room(struct xdp_md *context, __u32 stop)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	int more = (int)(stop + STAMPS_LEN) - (int)(end - data);

	if (!bpf_xdp_adjust_tail(context, more))
		return 1;
	/* Drivers have little or no tailroom, and more headroom. */
	if (!move_forward(context, stop))
		return 0;
	more -= STAMPS_LEN;
	return !more || !bpf_xdp_adjust_tail(context, more);
}

__noinline int append_stamps(struct xdp_md *context, __u32 mtu, __u64 received_ns)
{
	struct {
		__be64 received;
		__be64 handed_on;
	} *stamps;
	struct headers it = {};
	__u32 bytes = 0, stop, total;
	int kind = read_datagram(context, &it, &bytes);
	struct udp_header *udp;
	void *data, *end;
	__u64 change;
	__u16 sum;

	if (kind != DATAGRAM)
		return kind == OTHER ? ATS_PASSED : ATS_MALFORMED;
	stop = it.transport + bytes;
	total = stop + sizeof(*stamps) - it.ip;
	if (total > mtu)
		return ATS_TOO_BIG;
	if (!make_room(context, stop))
		return ATS_NO_ROOM;
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	stamps = data + (stop & MOST_FRAME);
	if ((void *)(stamps + 1) > end)
		return ATS_MALFORMED;
	stamps->received = bpf_cpu_to_be64(received_ns);
	stamps->handed_on = bpf_cpu_to_be64(bpf_ktime_get_ns());
	sum = folded((stamps->received & 0xffffffff) + (stamps->received >> 32) +
		     (stamps->handed_on & 0xffffffff) + (stamps->handed_on >> 32));
	/* After an odd number of bytes the stamps straddle the words of the sum (RFC 1071, section 2 (B)). */
	if (bytes & 1)
		sum = sum << 8 | sum >> 8;
	udp = AT(struct udp_header, it.transport);
	if (!udp)
		return ATS_MALFORMED;
	/* The length counts twice: in the pseudo header and in the UDP header. */
	change = (__u64)(__u16)~udp->length * 2 + sum;
	udp->length = bpf_htons(bytes + sizeof(*stamps));
	change += (__u64)udp->length * 2;
	/* A checksum of 0 means that there is none. */
	if (udp->checksum)
		udp->checksum = nonzero(~folded((__u64)(__u16)~udp->checksum + change));
	if (it.version == 4) {
		struct ipv4_header *ip = AT(struct ipv4_header, it.ip);

		if (!ip)
			return ATS_MALFORMED;
		change = (__u64)(__u16)~ip->checksum + (__u16)~ip->length + bpf_htons(total);
		ip->length = bpf_htons(total);
		ip->checksum = ~folded(change);
	} else {
		struct ipv6_header *ip = AT(struct ipv6_header, it.ip);

		if (!ip)
			return ATS_MALFORMED;
		ip->length = bpf_htons(total - sizeof(*ip));
	}
	return ATS_STAMPED;
}
