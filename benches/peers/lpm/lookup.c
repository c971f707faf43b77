/* Measures lookups in DPDK's tables, for crates/lpm/benches/lookup.rs. `lookup FILE [EAL arguments]` reads routes
 * and addresses from FILE. For each line "SUBJECT SET" on standard input, it prints the cycles of the time-stamp
 * counter per lookup, the sum of all next hops, and the bytes of the tables; "no data" if the subject is unavailable.
 * The cycles are those of the fastest pass, of at least three in 80 ms, after a first pass that is not counted. */
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_lpm.h>
#include <rte_lpm6.h>
#include <rte_memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BURST 64

struct head { uint32_t family, routes, addresses, blocks; };
struct route { uint8_t network[16]; uint8_t length, zero; uint16_t hop; };

static struct head head;
static struct route *routes;
static void *sets[2];
static struct rte_lpm *lpm;
static struct rte_fib *fib;
static struct rte_lpm6 *lpm6;
static struct rte_fib6 *fib6;

static uint32_t v4(const uint8_t *b)
{
	return (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

/* rte_lpm_add searches all rules of a length, so adding a million routes takes hours. This function writes the entries
 * that rte_lpm_add would write, as FILE lists shorter routes first. */
static int fill_lpm(void)
{
	struct rte_lpm_config config = { .max_rules = 1, .number_tbl8s = head.blocks + 1 };
	lpm = rte_lpm_create("lpm", SOCKET_ID_ANY, &config);
	if (!lpm)
		return -1;
	uint32_t used = 0;
	for (uint32_t i = 0; i < head.routes; i++) {
		uint32_t first = v4(routes[i].network), depth = routes[i].length;
		struct rte_lpm_tbl_entry entry = { .next_hop = routes[i].hop, .valid = 1, .depth = depth };
		if (depth <= 24) {
			uint64_t count = 1ull << (24 - depth);
			for (uint64_t k = 0; k < count; k++)
				lpm->tbl24[(first >> 8) + k] = entry;
			continue;
		}
		struct rte_lpm_tbl_entry *slot = &lpm->tbl24[first >> 8];
		if (!slot->valid_group) {
			struct rte_lpm_tbl_entry old = *slot;
			old.valid_group = old.valid;
			for (int k = 0; k < 256; k++)
				lpm->tbl8[used * 256 + k] = old;
			struct rte_lpm_tbl_entry group = { .next_hop = used++, .valid = 1, .valid_group = 1 };
			*slot = group;
		}
		entry.valid_group = 1;
		for (uint32_t k = 0; k < 1u << (32 - depth); k++)
			lpm->tbl8[slot->next_hop * 256 + (first & 255) + k] = entry;
	}
	return 0;
}

static int fill_fib(void)
{
	struct rte_fib_conf conf = { .type = RTE_FIB_DIR24_8, .max_routes = head.routes + 1 };
	conf.dir24_8.nh_sz = RTE_FIB_DIR24_8_2B;
	conf.dir24_8.num_tbl8 = head.blocks + 2;
	fib = rte_fib_create("fib", SOCKET_ID_ANY, &conf);
	for (uint32_t i = 0; fib && i < head.routes; i++)
		if (rte_fib_add(fib, v4(routes[i].network), routes[i].length, routes[i].hop)) {
			fib = NULL; /* a later attempt fails at once, as the name stays in use */
			return -1;
		}
	return fib ? 0 : -1;
}

static int fill_lpm6(void)
{
	struct rte_lpm6_config config = { .max_rules = head.routes + 1, .number_tbl8s = head.blocks + 2 };
	lpm6 = rte_lpm6_create("lpm6", SOCKET_ID_ANY, &config);
	for (uint32_t i = 0; lpm6 && i < head.routes; i++)
		if (rte_lpm6_add(lpm6, routes[i].network, routes[i].length, routes[i].hop)) {
			lpm6 = NULL; /* a later attempt fails at once, as the name stays in use */
			return -1;
		}
	return lpm6 ? 0 : -1;
}

/* Returns the bytes of an entry: two bytes number 2^15 blocks. DPDK reserves up to three blocks for each /48, whether
 * other routes share the blocks or not. */
static uint64_t fib6_width(void)
{
	return 3 * head.routes < 1 << 15 ? 2 : 4;
}

static int fill_fib6(void)
{
	struct rte_fib6_conf conf = { .type = RTE_FIB6_TRIE, .max_routes = head.routes + 1 };
	conf.trie.nh_sz = fib6_width() == 2 ? RTE_FIB6_TRIE_2B : RTE_FIB6_TRIE_4B;
	conf.trie.num_tbl8 = fib6_width() == 2 ? (1 << 15) - 1 : 3 * head.routes;
	fib6 = rte_fib6_create("fib6", SOCKET_ID_ANY, &conf);
	for (uint32_t i = 0; fib6 && i < head.routes; i++)
		if (rte_fib6_add(fib6, routes[i].network, routes[i].length, routes[i].hop)) {
			fib6 = NULL; /* a later attempt fails at once, as the name stays in use */
			return -1;
		}
	return fib6 ? 0 : -1;
}

static uint64_t pass(const char *subject, void *set, uint64_t *sum)
{
	static uint32_t narrow[BURST];
	static uint64_t wide[BURST];
	uint64_t total = 0, start = rte_rdtsc_precise();
	uint32_t *ips = set;
	uint8_t (*ips6)[16] = set;
	uint32_t n = head.addresses;
#define SUM(array, width) for (int k = 0; k < width; k++) total += (array)[k]
	if (!strcmp(subject, "rte_lpm_lookup")) {
		for (uint32_t i = 0; i < n; i++) {
			uint32_t hop = 0;
			rte_lpm_lookup(lpm, ips[i], &hop);
			total += hop;
		}
	} else if (!strcmp(subject, "rte_lpm_lookup_bulk")) {
		for (uint32_t i = 0; i < n; i += BURST) {
			rte_lpm_lookup_bulk(lpm, ips + i, narrow, BURST);
			for (int k = 0; k < BURST; k++)
				total += narrow[k] & RTE_LPM_LOOKUP_SUCCESS ? narrow[k] & 0xffffff : 0;
		}
	} else if (!strcmp(subject, "rte_lpm_lookupx4")) {
		for (uint32_t i = 0; i < n; i += 4) {
			rte_lpm_lookupx4(lpm, _mm_loadu_si128((__m128i *)(ips + i)), narrow, 0);
			SUM(narrow, 4);
		}
	} else if (!strncmp(subject, "rte_fib6", 8)) {
		for (uint32_t i = 0; i < n; i += BURST) {
			rte_fib6_lookup_bulk(fib6, ips6 + i, wide, BURST);
			SUM(wide, BURST);
		}
	} else if (!strncmp(subject, "rte_fib", 7)) {
		for (uint32_t i = 0; i < n; i += BURST) {
			rte_fib_lookup_bulk(fib, ips + i, wide, BURST);
			SUM(wide, BURST);
		}
	} else {
		for (uint32_t i = 0; i < n; i += BURST) {
			rte_lpm6_lookup_bulk_func(lpm6, ips6 + i, (int32_t *)narrow, BURST);
			for (int k = 0; k < BURST; k++)
				total += (int32_t)narrow[k] < 0 ? 0 : narrow[k];
		}
	}
	uint64_t took = rte_rdtsc_precise() - start;
	*sum = total;
	return took;
}

/* Prepares the tables that the subject needs; returns the bytes of these tables, 0 if the subject is unavailable. */
static uint64_t ready(const char *subject)
{
	uint64_t first = 1 << 24, blocks = head.blocks;
	if (head.family == 4) {
		if (!strncmp(subject, "rte_lpm_", 8))
			return lpm || !fill_lpm() ? first * 4 + (blocks + 1) * 1024 : 0;
		if (strncmp(subject, "rte_fib_", 8) || (!fib && fill_fib()))
			return 0;
		int vector = !strcmp(subject, "rte_fib_vector");
		if (rte_fib_select_lookup(fib, vector ? RTE_FIB_LOOKUP_DIR24_8_VECTOR_AVX512
						      : RTE_FIB_LOOKUP_DIR24_8_SCALAR_MACRO))
			return 0;
		return first * 2 + (blocks + 2) * 512;
	}
	if (!strcmp(subject, "rte_lpm6_lookup_bulk"))
		return lpm6 || !fill_lpm6() ? first * 4 + (blocks + 2) * 1024 : 0;
	if (strncmp(subject, "rte_fib6_", 9) || (!fib6 && fill_fib6()))
		return 0;
	int vector = !strcmp(subject, "rte_fib6_vector");
	if (rte_fib6_select_lookup(fib6, vector ? RTE_FIB6_LOOKUP_TRIE_VECTOR_AVX512 : RTE_FIB6_LOOKUP_TRIE_SCALAR))
		return 0;
	return (first + (blocks + 2) * 256) * fib6_width();
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	FILE *file = fopen(argv[1], "rb");
	if (!file || fread(&head, sizeof(head), 1, file) != 1)
		return 2;
	routes = malloc(sizeof(*routes) * (head.routes + 1));
	if (fread(routes, sizeof(*routes), head.routes, file) != head.routes)
		return 2;
	size_t width = head.family == 4 ? 4 : 16;
	for (int s = 0; s < 2; s++) {
		sets[s] = malloc(width * head.addresses);
		if (fread(sets[s], width, head.addresses, file) != head.addresses)
			return 2;
	}
	if (rte_eal_init(argc - 1, argv + 1) < 0)
		return 3;
	char subject[64];
	int set;
	while (scanf("%63s %d", subject, &set) == 2) {
		uint64_t bytes = ready(subject), sum = 0, best = UINT64_MAX;
		if (bytes)
			pass(subject, sets[set & 1], &sum); /* loads the caches again, which other subjects have used */
		uint64_t end = rte_rdtsc() + rte_get_tsc_hz() / 12;
		for (int passes = 0; bytes && (passes < 3 || rte_rdtsc() < end); passes++) {
			uint64_t took = pass(subject, sets[set & 1], &sum);
			if (took < best)
				best = took;
		}
		if (bytes)
			printf("%.3f %lu %lu\n", (double)best / head.addresses, sum, bytes);
		else
			printf("no data\n");
		fflush(stdout);
	}
	rte_eal_cleanup();
	return 0;
}
