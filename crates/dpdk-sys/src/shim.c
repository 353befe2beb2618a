#include <errno.h>
#include <linux/membarrier.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rte_alarm.h>

#include "shim.h"

#ifndef RTE_MBUF_REFCNT_ATOMIC
#error "tally-dpdk shares buffers between threads: DPDK must be built with atomic refcounts"
#endif

/* The types that src/mbuf.rs gives the fields of rte_mbuf. */
#define FIELD_IS(field, type)                                                                      \
	_Static_assert(__builtin_types_compatible_p(__typeof__(((struct rte_mbuf *)0)->field), type), \
		       #field " of rte_mbuf is of another type")
FIELD_IS(buf_addr, void *);
FIELD_IS(buf_len, uint16_t);
FIELD_IS(data_len, uint16_t);
FIELD_IS(data_off, uint16_t);
FIELD_IS(nb_segs, uint16_t);
FIELD_IS(next, struct rte_mbuf *);
FIELD_IS(ol_flags, uint64_t);
FIELD_IS(pkt_len, uint32_t);
FIELD_IS(port, uint16_t);
FIELD_IS(tx_offload, uint64_t);
/* An AtomicU16 in Rust. In C it is _Atomic only if DPDK was built with enable_stdatomic. */
_Static_assert(sizeof(((struct rte_mbuf *)0)->refcnt) == 2, "refcnt is 16 bits wide");

#define RX_CHECKSUM (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM)
#define RSS_FIELDS (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP)

int tally_errno(void)
{
	return rte_errno;
}

uint64_t tally_rdtsc(void)
{
	return rte_get_tsc_cycles();
}

/* A thread that has bursts, for `munmap` below. */
struct burster {
	struct burster *next;
	/* Counts when a burst begins and when it ends: odd in the middle of one. */
	uint64_t turns;
	bool is_known;
};

static pthread_mutex_t bursters_lock = PTHREAD_MUTEX_INITIALIZER;
static struct burster *bursters;
static pthread_once_t bursters_once = PTHREAD_ONCE_INIT;
static pthread_key_t bursters_key;
static __thread struct burster own;

/* At the end of a thread. */
static void forget(void *ended)
{
	struct burster **it = &bursters;

	pthread_mutex_lock(&bursters_lock);
	while (*it != ended)
		it = &(*it)->next;
	*it = own.next;
	own.is_known = false;
	pthread_mutex_unlock(&bursters_lock);
}

static void begin_to_know(void)
{
	if (pthread_key_create(&bursters_key, forget) != 0)
		abort();
	/* What it is for without this says `bursts_end`. */
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

static __rte_noinline void know(void)
{
	pthread_once(&bursters_once, begin_to_know);
	if (pthread_setspecific(bursters_key, &own) != 0)
		abort();
	pthread_mutex_lock(&bursters_lock);
	own.next = bursters;
	bursters = &own;
	own.is_known = true;
	pthread_mutex_unlock(&bursters_lock);
}

static void begin_burst(void)
{
	if (unlikely(!own.is_known))
		know();
	__atomic_store_n(&own.turns, own.turns + 1, __ATOMIC_RELAXED);
	/* For the compiler only: for the CPU, those who look use membarrier(2). */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static void end_burst(void)
{
	__atomic_store_n(&own.turns, own.turns + 1, __ATOMIC_RELEASE);
}

uint16_t tally_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t n)
{
	begin_burst();
	n = rte_eth_rx_burst(port, queue, frames, n);
	end_burst();
	return n;
}

uint16_t tally_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t n)
{
	begin_burst();
	n = rte_eth_tx_burst(port, queue, frames, n);
	end_burst();
	return n;
}

int tally_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int n)
{
	return rte_pktmbuf_alloc_bulk(pool, frames, n);
}

void tally_mbuf_free(struct rte_mbuf *frame)
{
	rte_pktmbuf_free(frame);
}

/* As rte_pktmbuf_free_bulk, with few instructions where frames have one segment and follow others
 * of their pool. */
void tally_free_bulk(struct rte_mbuf **frames, unsigned int n)
{
	struct rte_mempool *pool = NULL;
	unsigned int i, done = 0; /* frames[0..done] are free and of `pool` */

	for (i = 0; i < n; i++) {
		struct rte_mbuf *frame = frames[i];

		if (unlikely(frame->nb_segs != 1)) {
			rte_pktmbuf_free(frame);
			continue;
		}
		frame = rte_pktmbuf_prefree_seg(frame);
		if (unlikely(frame == NULL))
			continue;
		if (unlikely(frame->pool != pool)) {
			if (done != 0)
				rte_mempool_put_bulk(pool, (void **)frames, done);
			pool = frame->pool;
			done = 0;
		}
		frames[done++] = frame;
	}
	if (done != 0)
		rte_mempool_put_bulk(pool, (void **)frames, done);
}

int tally_mbuf_linearize(struct rte_mbuf *frame)
{
	return rte_pktmbuf_linearize(frame);
}

static void flush_one(struct rte_mempool *pool, void *unused)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, rte_lcore_id());

	(void)unused;
	if (cache != NULL && cache->len != 0)
		rte_mempool_cache_flush(cache, pool);
}

void tally_flush_caches(void)
{
	rte_mempool_walk(flush_one, NULL);
}

uint32_t tally_mempool_size(const struct rte_mempool *pool)
{
	return pool->size;
}

uint32_t tally_mempool_in_ring(const struct rte_mempool *pool)
{
	/* rte_mempool_ops_get_count does the same, but isn't exported. */
	return rte_mempool_get_ops(pool->ops_index)->get_count(pool);
}

void tally_ring_free_frames(struct rte_ring *ring)
{
	struct rte_mbuf *frames[32];
	unsigned int n;

	while ((n = rte_ring_dequeue_burst(ring, (void **)frames, RTE_DIM(frames), NULL)) != 0)
		tally_free_bulk(frames, n);
}

int tally_port_info_get(uint16_t port, struct tally_port_info *info)
{
	struct rte_eth_dev_info dev;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	memset(info, 0, sizeof(*info));
	if (dev.driver_name != NULL)
		strncpy(info->driver, dev.driver_name, sizeof(info->driver) - 1);
	info->max_rx_queues = dev.max_rx_queues;
	info->max_tx_queues = dev.max_tx_queues;
	info->min_mtu = dev.min_mtu;
	info->max_mtu = dev.max_mtu;
	info->max_rx_pktlen = dev.max_rx_pktlen;
	info->if_index = dev.if_index;
	info->rx_checksum = (dev.rx_offload_capa & RX_CHECKSUM) == RX_CHECKSUM;
	info->rx_scatter = (dev.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
	info->tx_multi_segment = (dev.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) != 0;
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	/* Since 23.03 net_memif copies each segment into a descriptor of its own, so that the
	 * peer receives several segments. Before the stable updates of 2026 it does not clear
	 * the descriptors' "next" flag either, which joins later frames. */
	if (strcmp(info->driver, "net_memif") == 0)
		info->tx_multi_segment = false;
#endif
	info->rss = (dev.flow_type_rss_offloads & RSS_FIELDS) != 0;
	return 0;
}

int tally_port_configure(uint16_t port, const struct tally_port_conf *ask)
{
	struct rte_eth_dev_info dev;
	struct rte_eth_conf conf;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = ask->mtu;
	/* An allow-list. RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE must never be on it: with it the
	 * driver frees without looking at the reference count, and a multicast result shares
	 * one buffer. */
	if (ask->rx_checksum)
		conf.rxmode.offloads |= RX_CHECKSUM;
	if (ask->rx_scatter)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	if (ask->tx_multi_segment)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	conf.rxmode.offloads &= dev.rx_offload_capa;
	conf.txmode.offloads &= dev.tx_offload_capa;
	if (ask->rss && ask->rx_queues > 1) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = RSS_FIELDS & dev.flow_type_rss_offloads;
	}
	return rte_eth_dev_configure(port, ask->rx_queues, ask->tx_queues, &conf);
}

int tally_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket,
			 struct rte_mempool *pool)
{
	/* NULL: the driver's defaults; the port's offloads hold for all its queues. */
	return rte_eth_rx_queue_setup(port, queue, descriptors, (unsigned int)socket, NULL, pool);
}

int tally_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket)
{
	struct rte_eth_dev_info dev;
	struct rte_eth_txconf conf;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	/* A driver's default may name offloads of its own liking; ours is the port's list. */
	conf = dev.default_txconf;
	conf.offloads = 0;
	return rte_eth_tx_queue_setup(port, queue, descriptors, (unsigned int)socket, &conf);
}

/* True on the EAL's interrupt thread, from the first errand on. */
static __thread bool is_interrupt_thread;

struct errand {
	void (*job)(void *);
	void *argument;
	bool done;
};

static void run_errand(void *argument)
{
	struct errand *errand = argument;

	is_interrupt_thread = true;
	errand->job(errand->argument);
	__atomic_store_n(&errand->done, true, __ATOMIC_RELEASE);
}

int tally_on_interrupt_thread(void (*job)(void *), void *argument)
{
	struct errand errand = { .job = job, .argument = argument, .done = false };
	/* Alarms run on that thread, one after the other with everything else there. */
	int ret = rte_eal_alarm_set(1, run_errand, &errand);

	if (ret < 0)
		return ret;
	while (!__atomic_load_n(&errand.done, __ATOMIC_ACQUIRE))
		usleep(50);
	return 0;
}

/* Waits until all bursts of all threads have ended, also of a thread that waits for its CPU. */
static void bursts_end(void)
{
	struct burster *it;

	/* From here on each thread is seen to be in a burst, or its next burst sees what was
	 * written before. Where the kernel does not let us, it does so by itself in far less time
	 * than this. */
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
		usleep(10000);
	pthread_mutex_lock(&bursters_lock);
	for (it = bursters; it != NULL; it = it->next) {
		uint64_t turns = __atomic_load_n(&it->turns, __ATOMIC_ACQUIRE);

		while (turns % 2 != 0 && __atomic_load_n(&it->turns, __ATOMIC_ACQUIRE) == turns)
			usleep(50);
	}
	pthread_mutex_unlock(&bursters_lock);
}

/*
 * In place of libc's, for the whole process. When a net_memif peer goes, the driver marks the
 * port as not connected and unmaps the shared rings at once, on the interrupt thread, although a
 * burst on another thread may be reading them: a crash (DPDK 22.11 to 25.11). No burst that
 * begins after the mark reads them, so on that thread it is enough to wait for those that have
 * begun. An errand configures each net_memif port, so is_interrupt_thread is set before the
 * first peer connects.
 */
int munmap(void *address, size_t bytes)
{
	if (is_interrupt_thread)
		bursts_end();
	return (int)syscall(SYS_munmap, address, bytes);
}

int tally_link_get(uint16_t port, struct tally_link *link)
{
	struct rte_eth_link eth;
	int ret;

	memset(&eth, 0, sizeof(eth));
	ret = rte_eth_link_get_nowait(port, &eth);
	link->speed_mbps = eth.link_speed;
	link->up = eth.link_status == RTE_ETH_LINK_UP;
	link->full_duplex = eth.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return ret;
}

int tally_port_stats_get(uint16_t port, struct tally_port_stats *stats)
{
	struct rte_eth_stats eth;
	int ret = rte_eth_stats_get(port, &eth);

	if (ret != 0)
		return ret;
	stats->rx_frames = eth.ipackets;
	stats->rx_bytes = eth.ibytes;
	stats->rx_missed = eth.imissed;
	stats->rx_errors = eth.ierrors;
	stats->rx_no_buffer = eth.rx_nombuf;
	stats->tx_frames = eth.opackets;
	stats->tx_bytes = eth.obytes;
	stats->tx_errors = eth.oerrors;
	return 0;
}

_Static_assert(sizeof(((struct tally_xstat *)0)->name) == RTE_ETH_XSTATS_NAME_SIZE,
	       "names are copied whole");

int tally_port_xstats_get(uint16_t port, struct tally_xstat *stats, unsigned int n)
{
	int count = rte_eth_xstats_get_names(port, NULL, 0);
	struct rte_eth_xstat_name *names;
	struct rte_eth_xstat *values;
	unsigned int found = 0;

	if (count <= 0)
		return count;
	names = calloc(count, sizeof(*names));
	values = calloc(count, sizeof(*values));
	if (names == NULL || values == NULL ||
	    rte_eth_xstats_get_names(port, names, count) != count) {
		count = 0;
	} else {
		int got = rte_eth_xstats_get(port, values, count);

		if (got >= 0 && got < count)
			count = got;
		else if (got != count)
			count = 0;
	}
	for (int i = 0; i < count && found < n; i++) {
		uint64_t id = values[i].id < (uint64_t)count ? values[i].id : (uint64_t)i;

		memcpy(stats[found].name, names[id].name, sizeof(stats[found].name));
		stats[found].name[sizeof(stats[found].name) - 1] = '\0';
		stats[found++].value = values[i].value;
	}
	free(names);
	free(values);
	return (int)found;
}

int tally_mac_address_get(uint16_t port, uint8_t address[6])
{
	struct rte_ether_addr mac;
	int ret = rte_eth_macaddr_get(port, &mac);

	if (ret == 0)
		memcpy(address, mac.addr_bytes, sizeof(mac.addr_bytes));
	return ret;
}

int tally_udp_rule_apply(uint16_t port, const struct tally_udp_rule *rule, bool make,
			 char *why, size_t why_bytes)
{
	struct rte_flow_attr attr = { .ingress = 1 };
	struct rte_flow_item_ipv4 ip = { .hdr = { .dst_addr = rule->ip,
						  .next_proto_id = IPPROTO_UDP } };
	struct rte_flow_item_ipv4 ip_mask = { .hdr = { .dst_addr = UINT32_MAX,
						       .next_proto_id = UINT8_MAX } };
	struct rte_flow_item_udp udp = { .hdr.dst_port = rte_cpu_to_be_16(rule->udp_port) };
	struct rte_flow_item_udp udp_mask = { .hdr.dst_port = UINT16_MAX };
	struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = RTE_FLOW_ITEM_TYPE_IPV4 },
		{ .type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &udp_mask },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action_queue queue = { .index = rule->queue };
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error error = { 0 };
	int ret;

	if (rule->ip != 0) {
		pattern[1].spec = &ip;
		pattern[1].mask = &ip_mask;
	}
	ret = rte_flow_validate(port, &attr, pattern, actions, &error);
	if (ret == 0 && make && rte_flow_create(port, &attr, pattern, actions, &error) == NULL)
		ret = rte_errno != 0 ? -rte_errno : -EIO;
	why[0] = '\0';
	if (ret != 0 && error.message != NULL)
		strncat(why, error.message, why_bytes - 1);
	return ret > 0 ? -ret : ret;
}

void tally_rules_flush(uint16_t port)
{
	struct rte_flow_error error;

	rte_flow_flush(port, &error);
}

int tally_telemetry_add_number(struct rte_tel_data *data, const char *name, uint64_t value)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_dict_uint(data, name, value);
#else
	return rte_tel_data_add_dict_u64(data, name, value);
#endif
}
