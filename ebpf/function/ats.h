/* Two time stamps behind UDP payloads (crates/function/src/ats.rs). */
#pragma once
#include "headers.h"

/* In the order of the function's fates. */
enum ats_fate { ATS_STAMPED, ATS_PASSED, ATS_TOO_BIG, ATS_NO_ROOM, ATS_MALFORMED };

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
	data = (void *)(long)context->data;
	end = (void *)(long)context->data_end;
	if (bpf_xdp_adjust_tail(context, (int)(stop + sizeof(*stamps)) - (int)(end - data)))
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
	/* Behind an odd number of bytes they straddle the words of the sum (RFC 1071, section 2 (B)). */
	if (bytes & 1)
		sum = sum << 8 | sum >> 8;
	udp = AT(struct udp_header, it.transport);
	if (!udp)
		return ATS_MALFORMED;
	/* The length counts in the pseudo header and in the UDP header. */
	change = (__u64)(__u16)~udp->length * 2 + sum;
	udp->length = bpf_htons(bytes + sizeof(*stamps));
	change += (__u64)udp->length * 2;
	/* 0 says that there is none. */
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
