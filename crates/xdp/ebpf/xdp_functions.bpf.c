/* Runs the functions of a chain in order on every frame from one interface to another, with the same result and the
 * same counts as crates/functions in user space. One copy is loaded for each direction. Each function is verified
 * separately, independent of the chain. */
#include "forwarding.h"
#include "function/ats.h"
#include "function/balance.h"
#include "function/classifier.h"
#include "function/filter.h"
#include "function/nat.h"
#include "function/settings.h"
#include "function/xor.h"

/* The limit on the outcomes of a function. */
#define OUTCOMES 16

struct outcomes {
	__u64 count[OUTCOMES];
};

/* The counts by function of the chain, shared by all directions. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAGES);
	__type(key, __u32);
	__type(value, struct outcomes);
} outcomes SEC(".maps");

/* The frames by class, shared by all directions. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} classes SEC(".maps");

/* Runs one function on the frame and returns its outcome. With outcomes up to `last_kept` the frame continues. */
static __always_inline __u32 pass(struct xdp_md *context, __u32 i, __u64 now_ns, __u32 *last_kept)
{
	__u64 value = settings.stage[i].value;

	switch (settings.stage[i].kind) {
	case XOR:
		*last_kept = XOR_PASSED;
		return xor_payload(context, value);
	case ATS:
		*last_kept = ATS_PASSED;
		return append_stamps(context, value, now_ns);
	case FILTER:
		*last_kept = ACCEPTED_NO_IP;
		return filter(context, settings.stage[i].first, settings.stage[i].count, value);
	case BALANCE:
		*last_kept = BALANCE_PASSED;
		return balance(context, settings.stage[i].first, value);
	case NAT:
		*last_kept = NAT_PASSED;
		return nat(context, value, now_ns);
	default:
		*last_kept = OUTCOMES;
		return value;
	}
}

SEC("xdp")
int xdp_functions(struct xdp_md *context)
{
	__u64 bytes = context->data_end - context->data;
	__u32 key = 0;
	struct counters *counters = bpf_map_lookup_elem(&counted, &key);
	__u64 now_ns = settings.reads_clock ? bpf_ktime_get_ns() : 0;
	__u32 class = 0;

	if (!counters)
		return XDP_ABORTED;
	counters->rx_packets++;
	counters->rx_bytes += bytes;
	if (bytes > MOST_FRAME) {
		counters->too_long++;
		goto drop;
	}
	if (settings.is_classified) {
		__u64 *frames;

		class = classify(context, settings.class_rules, settings.default_class);
		frames = bpf_map_lookup_elem(&classes, &class);
		if (frames)
			++*frames;
		if (class == settings.dropped_class) {
			counters->dropped++;
			goto drop;
		}
	}
	for (__u32 i = 0; i < STAGES; i++) {
		__u32 outcome, last_kept = 0;
		struct outcomes *sums;

		if (i >= settings.stages)
			break;
		if (settings.is_classified && settings.stage[i].class != class)
			continue;
		if (settings.stage[i].kind == HEADERS) {
			void *data = (void *)(long)context->data;
			void *end = (void *)(long)context->data_end;

			if (read_type(data, end, &key) && change_header(&settings.stage[i].change, data, end))
				continue;
			counters->too_short++;
			goto drop;
		}
		outcome = pass(context, i, now_ns, &last_kept);
		key = settings.stage[i].number;
		sums = bpf_map_lookup_elem(&outcomes, &key);
		if (sums && outcome < OUTCOMES)
			sums->count[outcome]++;
		if (outcome > last_kept) {
			counters->dropped++;
			goto drop;
		}
	}
	return leave(context, counters, bytes);
drop:
	counters->dropped_bytes += bytes;
	return XDP_DROP;
}

char _license[] SEC("license") = "Apache-2.0";
