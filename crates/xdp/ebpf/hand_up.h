/* Frames that a program passes up to the process (crates/xdp/src/upcall/handed_up.rs). */
#pragma once
#include "xdp_types.h"
#include <bpf/bpf_helpers.h>

/* The longest frame that is passed up. */
#define MOST_UP 4092

struct handed_up {
	__u32 bytes;
	__u8 frame[MOST_UP];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} up SEC(".maps");

/* Passes the frame up to the process. Returns 0 if the ring is full, or if the frame is empty or too long. */
static __always_inline int hand_up(struct xdp_md *context)
{
	/* The length has 64 bits, because the compiler would compare a copy of a narrower number, and the verifier would
	 * not know the limits of the original. */
	__u64 bytes = context->data_end - context->data;
	struct handed_up *copy;

	asm volatile("" : "+r"(bytes));
	if (bytes < 1 || bytes > MOST_UP)
		return 0;
	copy = bpf_ringbuf_reserve(&up, sizeof(*copy), 0);
	if (!copy)
		return 0;
	copy->bytes = bytes;
	if (bpf_xdp_load_bytes(context, 0, copy->frame, bytes)) {
		bpf_ringbuf_discard(copy, 0);
		return 0;
	}
	bpf_ringbuf_submit(copy, 0);
	return 1;
}
