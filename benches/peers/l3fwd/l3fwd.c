/* A router of IPv4 on DPDK as its example l3fwd is (which Debian does not ship): look-ups by rte_lpm, four at a time, or by
 * rte_fib, a burst at a time. l3fwd [EAL arguments] -- lpm|fib PORT:PREFIX/LENGTH:OWN-MAC-NEXT-MAC...
 * One worker, two ports; a route leads to a port and gives the packet both MAC addresses. It prints "forwarding", and
 * ends at the end of its standard input. */
#include <arpa/inet.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_fib.h>
#include <rte_ip.h>
#include <rte_lpm.h>
#include <rte_prefetch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BURST 32
#define RING 1024
#define BUFFERS 8192
#define PORTS 2
#define ROUTES 64
#define NO_ROUTE 0xffff

struct hop { uint16_t port; struct rte_ether_addr own, next; };

static struct hop hops[ROUTES];
static struct rte_lpm *lpm;
static struct rte_fib *fib;
static volatile int stop;

static int wrong(const char *what)
{
	fprintf(stderr, "l3fwd: %s\n", what);
	return 2;
}

static int add(const char *text, unsigned number)
{
	char address[64], own[32], next[32];
	unsigned port, length;
	struct in_addr network;
	if (number >= ROUTES ||
	    sscanf(text, "%u:%63[0-9.]/%u:%17[0-9a-fA-F:]-%17[0-9a-fA-F:]", &port, address, &length, own, next) != 5 ||
	    port >= PORTS || !inet_aton(address, &network) || rte_ether_unformat_addr(own, &hops[number].own) ||
	    rte_ether_unformat_addr(next, &hops[number].next))
		return -1;
	hops[number].port = port;
	uint32_t ip = ntohl(network.s_addr);
	return lpm ? rte_lpm_add(lpm, ip, length, number) : rte_fib_add(fib, ip, length, number);
}

static void look_up(struct rte_mbuf **packets, unsigned count, uint16_t *found)
{
	uint32_t to[BURST + 4] = {0};
	for (unsigned i = 0; i < count; i++) {
		struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(packets[i], struct rte_ipv4_hdr *, RTE_ETHER_HDR_LEN);
		to[i] = rte_be_to_cpu_32(ip->dst_addr);
	}
	if (lpm) {
		for (unsigned i = 0; i < count; i += 4) {
			uint32_t four[4];
			rte_lpm_lookupx4(lpm, _mm_loadu_si128((__m128i *)(to + i)), four, NO_ROUTE);
			for (unsigned k = 0; k < 4; k++)
				found[i + k] = four[k];
		}
	} else {
		uint64_t all[BURST];
		rte_fib_lookup_bulk(fib, to, all, count);
		for (unsigned i = 0; i < count; i++)
			found[i] = all[i];
	}
}

static void send_all(uint16_t port, struct rte_mbuf **packets, unsigned count)
{
	unsigned sent = rte_eth_tx_burst(port, 0, packets, count);
	if (sent < count)
		rte_pktmbuf_free_bulk(packets + sent, count - sent);
}

static int forward(void *unused)
{
	(void)unused;
	while (!stop) {
		for (uint16_t port = 0; port < PORTS; port++) {
			struct rte_mbuf *packets[BURST], *out[PORTS][BURST];
			unsigned outgoing[PORTS] = {0};
			uint16_t found[BURST + 4];
			unsigned count = rte_eth_rx_burst(port, 0, packets, BURST);
			if (!count)
				continue;
			for (unsigned i = 0; i < count; i++)
				rte_prefetch0(rte_pktmbuf_mtod(packets[i], void *));
			look_up(packets, count, found);
			for (unsigned i = 0; i < count; i++) {
				struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(packets[i], struct rte_ether_hdr *);
				struct rte_ipv4_hdr *ip = (struct rte_ipv4_hdr *)(ethernet + 1);
				/* What RFC 1812 asks for before a packet is forwarded, as l3fwd does it. */
				int fits = ethernet->ether_type == RTE_BE16(RTE_ETHER_TYPE_IPV4) &&
					   rte_pktmbuf_pkt_len(packets[i]) >= sizeof(*ethernet) + sizeof(*ip) &&
					   ip->version_ihl >> 4 == 4 && (ip->version_ihl & 15) >= 5 && ip->time_to_live > 1 &&
					   rte_be_to_cpu_16(ip->total_length) >= sizeof(*ip);
				if (!fits || found[i] >= ROUTES) {
					rte_pktmbuf_free(packets[i]);
					continue;
				}
				struct hop *hop = &hops[found[i]];
				ethernet->src_addr = hop->own;
				ethernet->dst_addr = hop->next;
				ip->time_to_live--;
				uint32_t sum = ip->hdr_checksum + 1; /* the TTL is the first byte of its word */
				ip->hdr_checksum = sum + (sum >> 16);
				out[hop->port][outgoing[hop->port]++] = packets[i];
			}
			for (uint16_t to = 0; to < PORTS; to++)
				if (outgoing[to])
					send_all(to, out[to], outgoing[to]);
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		return wrong("no EAL");
	argc -= used;
	argv += used;
	if (argc < 3)
		return wrong("want lpm or fib, then PORT:PREFIX/LENGTH:OWN-MAC-NEXT-MAC for each route");
	if (!strcmp(argv[1], "lpm")) {
		struct rte_lpm_config config = { .max_rules = 1024, .number_tbl8s = 256 };
		lpm = rte_lpm_create("lpm", SOCKET_ID_ANY, &config);
	} else {
		struct rte_fib_conf config = { .type = RTE_FIB_DIR24_8, .default_nh = NO_ROUTE / 2, .max_routes = 1024 };
		config.dir24_8.nh_sz = RTE_FIB_DIR24_8_2B;
		config.dir24_8.num_tbl8 = 256;
		fib = rte_fib_create("fib", SOCKET_ID_ANY, &config);
	}
	if (!lpm && !fib)
		return wrong("no table");
	for (int i = 2; i < argc; i++)
		if (add(argv[i], i - 2))
			return wrong(argv[i]);
	struct rte_mempool *pool =
		rte_pktmbuf_pool_create("pool", BUFFERS, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (!pool || rte_eth_dev_count_avail() != PORTS)
		return wrong("want memory, and two devices (--vdev)");
	for (uint16_t port = 0; port < PORTS; port++) {
		struct rte_eth_conf config = {0};
		if (rte_eth_dev_configure(port, 1, 1, &config) ||
		    rte_eth_rx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL, pool) ||
		    rte_eth_tx_queue_setup(port, 0, RING, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(port))
			return wrong("a device does not start");
	}
	unsigned worker = rte_get_next_lcore(-1, 1, 0);
	if (worker >= RTE_MAX_LCORE || rte_eal_remote_launch(forward, NULL, worker))
		return wrong("want a worker beside the main thread (--lcores)");
	puts("forwarding");
	fflush(stdout);
	char byte;
	while (read(0, &byte, 1) > 0)
		;
	stop = 1;
	rte_eal_mp_wait_lcore();
	return 0;
}
