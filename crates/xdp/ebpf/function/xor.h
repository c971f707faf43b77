/* XORs every byte of UDP payloads with a key (crates/functions/src/xor.rs). */
#pragma once
#include "headers.h"

/* The order is that of the function's outcomes. */
enum xor_outcome { XOR_CHANGED, XOR_PASSED, XOR_MALFORMED };

/* The number of bytes per step. */
#define STEP 32

__noinline int xor_payload(struct xdp_md *context, __u32 key)
{
	struct headers it = {};
	__u32 bytes = 0, keys = (key & 0xff) * 0x01010101;
	int kind = read_datagram(context, &it, &bytes);
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u64 before = 0, after = 0;
	struct udp_header *udp;
	__u32 left, at;
	void *place;

	if (kind != DATAGRAM)
		return kind == OTHER ? XOR_PASSED : XOR_MALFORMED;
	left = bytes - sizeof(*udp);
	at = it.transport + sizeof(*udp);
	/* The bytes after the last complete step come first. After the long loop the verifier would check this loop
	 * again for each of its iterations. */
	place = data + ((at + left / STEP * STEP) & MOST_FRAME);
	for (__u32 i = 0, rest = left % STEP; i < STEP - 1; i++, place++) {
		__u8 *byte = place;

		if (i >= rest || place + 1 > end)
			break;
		before += (__u64)*byte << (i & 1) * 8;
		*byte ^= keys;
		after += (__u64)*byte << (i & 1) * 8;
	}
	place = data + (at & MOST_FRAME);
	for (__u32 i = 0, steps = left / STEP; i < MOST_FRAME / STEP; i++, place += STEP) {
		__u32 *words = place;

		if (i >= steps || place + STEP > end)
			break;
#pragma unroll
		for (int j = 0; j < STEP / 4; j++) {
			before += words[j];
			words[j] ^= keys;
			after += words[j];
		}
	}
	udp = AT(struct udp_header, it.transport);
	if (!udp)
		return XOR_MALFORMED;
	/* A checksum of 0 means that there is none. */
	if (udp->checksum)
		udp->checksum = nonzero(~folded((__u64)(__u16)~udp->checksum + (__u16)~folded(before) + after));
	return XOR_CHANGED;
}
