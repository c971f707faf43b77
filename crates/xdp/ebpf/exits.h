/* The counters of programs with several egress interfaces (EXITS): by the program's own OUTCOMES, and by interface. A
 * program defines both before it includes this file. */
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

/* The packets from this interface that left through each interface. Read by crates/xdp/src/forward/direction.rs. */
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
