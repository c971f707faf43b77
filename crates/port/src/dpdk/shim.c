/*
 * The C side of DPDK ports: calls of DPDK's inline functions, which Rust cannot call, and all code that uses DPDK's
 * structures. It is built as a separate library (crates/port/build.rs) and loaded when a DPDK port is first used
 * (library.rs). `Shim` in library.rs mirrors `struct taut_dpdk` below.
 */
#define _GNU_SOURCE
/* Device events are still marked experimental in DPDK 22.11, and unchanged since 18.02. */
#define ALLOW_EXPERIMENTAL_API
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mempool.h>
#include <rte_memory.h>
#include <rte_prefetch.h>
#include <rte_version.h>

/* The maximum number of packets of one call: taut_port::BATCH_CAPACITY. */
#define MOST_PACKETS 64

/* A packet's slot is its mbuf's distance from `base`, in units of the alignment of mbufs. */
#define SLOT_SHIFT 6
static_assert(1 << SLOT_SHIFT == RTE_CACHE_LINE_MIN_SIZE, "mbufs lie on cache lines");

/* The layout of taut_port::Packet (packet.rs). */
struct taut_packet {
	char *data;
	const void *ledger;
	uint32_t slot;
	uint16_t len;
	uint16_t headroom;
};

/* The counters of a port, in the layout of path.rs. */
struct taut_counts {
	uint64_t rx_packets;
	uint64_t rx_bytes;
	uint64_t rx_too_long;
	uint64_t tx_packets;
	uint64_t tx_bytes;
	uint64_t tx_too_long;
	uint64_t tx_refused;
};

/* The state of a port's data path, in the layout of path.rs. */
struct taut_path {
	uint16_t port;
	uint16_t queues;
	uint16_t next_queue;
	uint16_t tx_queue;
	struct rte_mempool *mempool;
	uintptr_t base;
	const void *ledger;
	/* Space for the receive timestamps of one call, or null. */
	uint64_t *stamps;
	uint64_t stamp_flag;
	int stamp_offset;
	struct taut_counts counts;
};

/* ---- log: DPDK's messages are stored for error messages, instead of written to standard error ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[2048];
static size_t log_len;

static ssize_t log_write(void *cookie __rte_unused, const char *text, size_t len)
{
	pthread_mutex_lock(&log_lock);
	/* The first messages contain the cause, so later ones are dropped if there is no space. */
	size_t taken = RTE_MIN(len, sizeof(log_text) - log_len);
	memcpy(log_text + log_len, text, taken);
	log_len += taken;
	pthread_mutex_unlock(&log_lock);
	return len;
}

/* Copies the messages since the last call, and returns their length. */
static size_t log_take(char *to, size_t room)
{
	pthread_mutex_lock(&log_lock);
	size_t len = RTE_MIN(log_len, room);
	memcpy(to, log_text, len);
	log_len = 0;
	pthread_mutex_unlock(&log_lock);
	return len;
}

static FILE *log_stream(void)
{
	static FILE *stream;
	if (stream == NULL) {
		stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = log_write});
		if (stream != NULL)
			setvbuf(stream, NULL, _IONBF, 0);
	}
	return stream;
}

/* ---- environment ---- */

/* Initialises the environment. Returns 0 or a negative error number. */
static int initialise(int argc, char **argv)
{
	FILE *stream = log_stream();
	if (stream == NULL || rte_openlog_stream(stream) != 0)
		return -ENOMEM;
	/* DPDK prints some of its errors, and its usage, past its log. */
	FILE *standard_output = stdout, *standard_error = stderr;
	stdout = stderr = stream;
	int rc = rte_eal_init(argc, argv);
	int error = rte_errno;
	stdout = standard_output;
	stderr = standard_error;
	/* DPDK creates a folder even if it is configured to write nothing there. */
	rmdir(rte_eal_get_runtime_dir());
	if (rc < 0)
		return error > 0 ? -error : -EFAULT;
	/* Without memory, the first device would end the process (rte_panic in eth_dev_shared_data_prepare). */
	void *probe = rte_malloc(NULL, 1 << 20, 0);
	if (probe == NULL)
		return -ENOMEM;
	rte_free(probe);
	return 0;
}

/* Registers the calling thread, so that it has its own caches of mbufs. */
static int register_thread(void)
{
	return rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() != 0 ? -rte_errno : 0;
}

static int lowest_list(const struct rte_memseg_list *list, void *lowest)
{
	uintptr_t *base = lowest;
	if (list->base_va != NULL && (uintptr_t)list->base_va < *base)
		*base = (uintptr_t)list->base_va;
	return 0;
}

/* Returns the lowest address that packet memory may have. */
static uintptr_t memory_base(void)
{
	uintptr_t base = UINTPTR_MAX;
	rte_memseg_list_walk(lowest_list, &base);
	return base & ~(uintptr_t)(RTE_CACHE_LINE_SIZE - 1);
}

/* ---- packet memory ---- */

static struct rte_mempool *make_mempool(const char *name, unsigned int mbufs)
{
	return rte_pktmbuf_pool_create(name, mbufs, RTE_MEMPOOL_CACHE_MAX_SIZE / 2, 0,
				       RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
}

static void highest_chunk(struct rte_mempool *mempool __rte_unused, void *highest,
			  struct rte_mempool_memhdr *chunk, unsigned int index __rte_unused)
{
	uintptr_t *top = highest;
	*top = RTE_MAX(*top, (uintptr_t)chunk->addr + chunk->len);
}

/* Returns the end of a pool's memory. */
static uintptr_t mempool_top(struct rte_mempool *mempool)
{
	uintptr_t top = 0;
	rte_mempool_mem_iter(mempool, highest_chunk, &top);
	return top;
}

static unsigned int mempool_in_use(struct rte_mempool *mempool)
{
	return rte_mempool_in_use_count(mempool);
}

/* Frees the mbufs of dropped packets. */
static void give_back(uintptr_t base, const uint32_t *slots, size_t n)
{
	for (size_t i = 0; i < n; i++)
		rte_pktmbuf_free((struct rte_mbuf *)(base + ((uintptr_t)slots[i] << SLOT_SHIFT)));
}

/* ---- devices ---- */

/* The requested settings of a device, and the resulting ones, in the layout of setup.rs. */
struct taut_setup {
	uint16_t ring;
	/* The number of receive queues, each with its own pool of mbufs, and of transmit queues. */
	uint16_t queues;
	uint16_t tx_queues;
	/* The longest payload of a frame; 0 for the driver's default. */
	uint16_t mtu;
	uint32_t rate_mbps;
	struct rte_mempool **mempools;
	/* The request for timestamps (1 or 0). The results are the offset of the timestamp in an mbuf, and the flag of
	 * mbufs that have a timestamp. */
	int stamps;
	int stamp_offset;
	uint64_t stamp_flag;
	uint16_t port;
	uint16_t rx_ring;
	uint16_t tx_ring;
	/* The step that failed, if one did. */
	const char *step;
	char driver[64];
};

/* The ports with a device to be released: the kernel waits for that before it removes a device from the machine. */
static atomic_bool leaving[RTE_MAX_ETHPORTS];

/* Handles an event on DPDK's own thread, which must not remove a device itself. */
static void device_event(const char *name __rte_unused, enum rte_dev_event_type event, void *leaves)
{
	if (event == RTE_DEV_EVENT_REMOVE)
		atomic_store((atomic_bool *)leaves, true);
}

/* Starts or stops the handling of events of a port's device. */
static void listen_to_device(uint16_t port, bool begin)
{
	/* The name of the device, which is that of the port for all devices that can be removed. */
	char name[RTE_ETH_NAME_MAX_LEN];
	if (rte_eth_dev_get_name_by_port(port, name) != 0)
		return;
	atomic_store(&leaving[port], false);
	if (begin)
		rte_dev_event_callback_register(name, device_event, &leaving[port]);
	else
		rte_dev_event_callback_unregister(name, device_event, &leaving[port]);
}

static int is_leaving(uint16_t port)
{
	return atomic_load_explicit(&leaving[port], memory_order_relaxed);
}

static struct rte_device *device_of(uint16_t port)
{
	struct rte_eth_dev_info info;
	return rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;
}

/* Stops a port and removes its device. */
static int remove_port(uint16_t port)
{
	struct rte_device *device = device_of(port);
	listen_to_device(port, false);
	rte_eth_dev_stop(port);
	int rc = rte_eth_dev_close(port);
	return device != NULL ? rte_dev_remove(device) : rc;
}

/* Returns true if the kernel or the peer of the device, not the driver, spreads frames over the queues. */
static bool is_spread_by_others(const char *driver)
{
	static const char *const drivers[] = {"net_memif", "net_vhost", "net_af_packet", "net_af_xdp"};
	for (size_t i = 0; i < RTE_DIM(drivers); i++)
		if (strcmp(driver, drivers[i]) == 0)
			return true;
	return false;
}

static int configure(struct taut_setup *setup)
{
	struct rte_eth_dev_info info;
	setup->step = "asking what it can do";
	int rc = rte_eth_dev_info_get(setup->port, &info);
	if (rc != 0)
		return rc;
	snprintf(setup->driver, sizeof(setup->driver), "%s", info.driver_name);

	struct rte_eth_conf conf = {0};
	if (setup->mtu != 0) {
		setup->step = "mtu";
		if (setup->mtu > info.max_mtu)
			return -ENOTSUP;
		conf.rxmode.mtu = setup->mtu;
		/* Some NICs put longer frames into several buffers. Without this offload their drivers deliver
		 * each buffer as a frame. */
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER & info.rx_offload_capa;
	}
	if (setup->queues > 1) {
		setup->step = "rss";
		uint64_t hash = (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP) & info.flow_type_rss_offloads;
		if (info.max_rx_queues < setup->queues || info.max_tx_queues < setup->tx_queues)
			return -ENOTSUP;
		if (hash == 0 && !is_spread_by_others(info.driver_name))
			return -ENOTSUP;
		if (hash != 0) {
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
			conf.rx_adv_conf.rss_conf.rss_hf = hash;
		}
	}
	if (setup->stamps) {
		setup->step = "stamps";
		/* net_pcap adds timestamps without a request, from its file. */
		if (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TIMESTAMP)
			conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_TIMESTAMP;
		else if (strcmp(info.driver_name, "net_pcap") != 0)
			return -ENOTSUP;
	}
	setup->step = "configuring it";
	rc = rte_eth_dev_configure(setup->port, setup->queues, setup->tx_queues, &conf);
	if (rc != 0)
		return rc;

	setup->rx_ring = setup->tx_ring = setup->ring;
	rc = rte_eth_dev_adjust_nb_rx_tx_desc(setup->port, &setup->rx_ring, &setup->tx_ring);
	if (rc != 0)
		return rc;
	int socket = rte_eth_dev_socket_id(setup->port);
	for (uint16_t queue = 0; queue < setup->queues; queue++) {
		setup->step = "setting up its receive queue";
		rc = rte_eth_rx_queue_setup(setup->port, queue, setup->rx_ring, socket, NULL,
					    setup->mempools[queue]);
		if (rc != 0)
			return rc;
	}
	for (uint16_t queue = 0; queue < setup->tx_queues; queue++) {
		setup->step = "setting up its transmit queue";
		rc = rte_eth_tx_queue_setup(setup->port, queue, setup->tx_ring, socket, NULL);
		if (rc != 0)
			return rc;
	}
	setup->step = "starting it";
	rc = rte_eth_dev_start(setup->port);
	if (rc != 0)
		return rc;
	if (setup->stamps) {
		setup->step = "stamps";
		/* The offset is that of the driver: a second registration only looks it up. */
		rc = rte_mbuf_dyn_rx_timestamp_register(&setup->stamp_offset, &setup->stamp_flag);
		if (rc != 0)
			return -rte_errno;
	}
	if (setup->rate_mbps != 0) {
		setup->step = "rate";
		rc = rte_eth_set_queue_rate_limit(setup->port, 0, setup->rate_mbps);
		if (rc != 0)
			return rc;
	}
	/* The call fails for devices that receive all frames anyway. */
	rte_eth_promiscuous_enable(setup->port);
	return 0;
}

/* Attaches the device `name` with `devargs` ("name,key=value,..."), and starts it. Returns 0 or a negative error
 * number. */
static int add_port(const char *name, const char *devargs, struct taut_setup *setup)
{
	setup->step = "attaching it";
	/* DPDK ignores an attached device without an error, and replaces its arguments. */
	if (rte_eth_dev_get_port_by_name(name, &setup->port) == 0)
		return -EBUSY;
	int rc = rte_dev_probe(devargs);
	if (rc != 0)
		return rc;
	rc = rte_eth_dev_get_port_by_name(name, &setup->port);
	if (rc != 0) {
		/* Some drivers append more to the device's name in the names of their ports. */
		struct rte_dev_iterator iterator;
		uint16_t port, found = RTE_MAX_ETHPORTS;
		RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &iterator)
			found = RTE_MIN(found, port);
		if (found == RTE_MAX_ETHPORTS)
			return rc;
		setup->port = found;
	}
	rc = configure(setup);
	if (rc != 0)
		remove_port(setup->port);
	else
		listen_to_device(setup->port, true);
	return rc;
}

/* Returns 1 if the link is up, else 0. */
static int link_is_up(uint16_t port)
{
	struct rte_eth_link link;
	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

/* The losses that the device itself counted, in the layout of setup.rs. */
struct taut_losses {
	uint64_t missed;
	uint64_t no_mbuf;
	uint64_t rx_errors;
	uint64_t tx_errors;
};

static int losses(uint16_t port, struct taut_losses *to)
{
	struct rte_eth_stats stats;
	int rc = rte_eth_stats_get(port, &stats);
	if (rc == 0)
		*to = (struct taut_losses){stats.imissed, stats.rx_nombuf, stats.ierrors, stats.oerrors};
	return rc;
}

/* ---- data path ---- */

/* Merges the segments of a frame into one if it fits; otherwise counts and frees the frame. */
static __attribute__((cold, noinline)) bool in_one_piece(struct taut_path *path, struct rte_mbuf *mbuf)
{
	if (rte_pktmbuf_linearize(mbuf) == 0)
		return true;
	path->counts.rx_too_long++;
	rte_pktmbuf_free(mbuf);
	return false;
}

static inline uint64_t stamp_of(const struct taut_path *path, const struct rte_mbuf *mbuf)
{
	if (!(mbuf->ol_flags & path->stamp_flag))
		return 0;
	return *RTE_MBUF_DYNFIELD(mbuf, path->stamp_offset, const rte_mbuf_timestamp_t *);
}

/* Makes packets from `n` mbufs, and returns the end of the packets. */
static inline __attribute__((always_inline)) struct taut_packet *
packets_of(struct taut_path *path, struct rte_mbuf **mbufs, size_t n, struct taut_packet *next, uint64_t *stamps)
{
	const void *ledger = path->ledger;
	uintptr_t base = path->base;
	uint64_t bytes = 0;
#pragma GCC unroll 4
	for (size_t i = 0; i < n; i++) {
		struct rte_mbuf *mbuf = mbufs[i];
		if (unlikely(mbuf->nb_segs != 1) && !in_one_piece(path, mbuf))
			continue;
		next->data = (char *)mbuf->buf_addr + mbuf->data_off;
		next->ledger = ledger;
		/* Every pool is known to be near enough to `base` (memory.rs). */
		next->slot = ((uintptr_t)mbuf - base) >> SLOT_SHIFT;
		next->len = mbuf->data_len;
		next->headroom = mbuf->data_off;
		bytes += mbuf->data_len;
		next++;
		if (stamps != NULL)
			*stamps++ = stamp_of(path, mbuf);
	}
	path->counts.rx_bytes += bytes;
	return next;
}

/* Receives up to `room` packets into `to` from the next queue in round-robin order, and returns their number. */
static uint16_t receive(struct taut_path *path, struct taut_packet *to, uint16_t room)
{
	struct rte_mbuf *mbufs[MOST_PACKETS];
	uint16_t queue = path->next_queue;
	if (unlikely(path->queues > 1))
		path->next_queue = queue + 1 < path->queues ? queue + 1 : 0;
	uint16_t n = rte_eth_rx_burst(path->port, queue, mbufs, RTE_MIN(room, MOST_PACKETS));
	if (n == 0)
		return 0;
	struct taut_packet *end = likely(path->stamps == NULL) ?
		packets_of(path, mbufs, n, to, NULL) : packets_of(path, mbufs, n, to, path->stamps);
	n = end - to;
	path->counts.rx_packets += n;
	return n;
}

enum stop { ALL, TOO_LONG, NO_MBUF };

/* Returns an mbuf with a copy of a packet of another port. */
static __attribute__((noinline)) struct rte_mbuf *copy(struct taut_path *path, const struct taut_packet *packet,
						       enum stop *stop)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(path->mempool);
	if (unlikely(mbuf == NULL)) {
		*stop = NO_MBUF;
		return NULL;
	}
	if (unlikely(packet->len > rte_pktmbuf_tailroom(mbuf))) {
		rte_pktmbuf_free(mbuf);
		*stop = TOO_LONG;
		return NULL;
	}
	memcpy(rte_pktmbuf_mtod(mbuf, void *), packet->data, packet->len);
	mbuf->data_len = packet->len;
	mbuf->pkt_len = packet->len;
	return mbuf;
}

/* Returns the mbuf of a packet of this port, updated with the packet's changed start and length. */
static inline __attribute__((always_inline)) struct rte_mbuf *mbuf_of(const struct taut_packet *packet, uintptr_t base)
{
	struct rte_mbuf *mbuf = (struct rte_mbuf *)(base + ((uintptr_t)packet->slot << SLOT_SHIFT));
	/* The comparison avoids stores, which are expensive here; most packets leave unchanged. */
	if (unlikely(mbuf->data_off != packet->headroom || mbuf->data_len != packet->len)) {
		mbuf->data_off = packet->headroom;
		mbuf->data_len = packet->len;
		mbuf->pkt_len = packet->len;
	}
	return mbuf;
}

/* Packets to send in one call. */
struct run {
	struct rte_mbuf *mbufs[MOST_PACKETS];
	/* The bitmap of the packets that are copies. */
	uint64_t copies;
	enum stop stop;
};

/* Continues a run of `len` mbufs in which copies are needed, and returns the resulting length of the run. */
static __attribute__((noinline)) size_t run_with_copies(struct taut_path *path, const struct taut_packet *packets,
							size_t n, size_t len, struct run *run)
{
	for (; len < n; len++) {
		if (packets[len].ledger == path->ledger) {
			run->mbufs[len] = mbuf_of(&packets[len], path->base);
			continue;
		}
		run->mbufs[len] = copy(path, &packets[len], &run->stop);
		if (run->mbufs[len] == NULL)
			break;
		run->copies |= UINT64_C(1) << len;
	}
	return len;
}

/* Sends up to `n` packets and returns the number that was accepted. `own` is the number of this port's mbufs among
 * them, which belong to the device now. */
static uint16_t transmit(struct taut_path *path, const struct taut_packet *packets, uint16_t n, uint16_t *own)
{
	const void *ledger = path->ledger;
	uintptr_t base = path->base;
	size_t taken = 0, handed_over = 0, left = RTE_MIN(n, MOST_PACKETS);
	struct run run;
	while (left > 0) {
		size_t len = 0;
		run.copies = 0;
		run.stop = ALL;
#pragma GCC unroll 4
		for (; len < left; len++) {
			if (unlikely(packets[len].ledger != ledger))
				break;
			run.mbufs[len] = mbuf_of(&packets[len], base);
		}
		if (unlikely(len < left))
			len = run_with_copies(path, packets, left, len, &run);
		size_t sent = rte_eth_tx_burst(path->port, path->tx_queue, run.mbufs, len);
		uint64_t bytes = 0;
		for (size_t i = 0; i < sent; i++)
			bytes += packets[i].len;
		path->counts.tx_packets += sent;
		path->counts.tx_bytes += bytes;
		handed_over += sent;
		if (unlikely(run.copies != 0)) {
			for (size_t i = 0; i < len; i++) {
				if (!(run.copies & (UINT64_C(1) << i)))
					continue;
				if (i < sent)
					handed_over--;
				else
					rte_pktmbuf_free(run.mbufs[i]);
			}
		}
		taken += sent;
		if (unlikely(sent < len)) {
			path->counts.tx_refused += len - sent;
			break;
		}
		if (likely(run.stop == ALL))
			break;
		if (run.stop == NO_MBUF)
			break;
		path->counts.tx_too_long++;
		taken++;
		packets += len + 1;
		left -= len + 1;
	}
	*own = handed_over;
	return taken;
}

/* ---- the interface to Rust ---- */

struct taut_dpdk {
	size_t layout;
	const char *drivers;
	const char *(*version)(void);
	int (*initialise)(int, char **);
	size_t (*log_take)(char *, size_t);
	int (*register_thread)(void);
	void (*unregister_thread)(void);
	uintptr_t (*memory_base)(void);
	struct rte_mempool *(*make_mempool)(const char *, unsigned int);
	uintptr_t (*mempool_top)(struct rte_mempool *);
	unsigned int (*mempool_in_use)(struct rte_mempool *);
	void (*free_mempool)(struct rte_mempool *);
	void (*give_back)(uintptr_t, const uint32_t *, size_t);
	int (*add_port)(const char *, const char *, struct taut_setup *);
	int (*remove_port)(uint16_t);
	int (*link_is_up)(uint16_t);
	int (*is_leaving)(uint16_t);
	int (*losses)(uint16_t, struct taut_losses *);
	uint16_t (*receive)(struct taut_path *, struct taut_packet *, uint16_t);
	uint16_t (*transmit)(struct taut_path *, const struct taut_packet *, uint16_t, uint16_t *);
};

__attribute__((visibility("default"))) const struct taut_dpdk taut_dpdk = {
	.layout = sizeof(struct taut_dpdk) << 32 | sizeof(struct taut_path) << 16 | sizeof(struct taut_setup),
	.drivers = RTE_EAL_PMD_PATH,
	.version = rte_version,
	.initialise = initialise,
	.log_take = log_take,
	.register_thread = register_thread,
	.unregister_thread = rte_thread_unregister,
	.memory_base = memory_base,
	.make_mempool = make_mempool,
	.mempool_top = mempool_top,
	.mempool_in_use = mempool_in_use,
	.free_mempool = rte_mempool_free,
	.give_back = give_back,
	.add_port = add_port,
	.remove_port = remove_port,
	.link_is_up = link_is_up,
	.is_leaving = is_leaving,
	.losses = losses,
	.receive = receive,
	.transmit = transmit,
};
