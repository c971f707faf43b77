/* What programs count that choose among EXITS interfaces: by their own OUTCOMES, and by interface. Both are known before this is
 * included. */
#pragma once

struct outcomes {
	__u64 count[OUTCOMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct outcomes);
} outcomes SEC(".maps");

/* What left through each interface, of what came in by this one. Read by crates/xdp/src/forward/direction.rs. */
struct left {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EXITS);
	__type(key, __u32);
	__type(value, struct left);
} left SEC(".maps");
