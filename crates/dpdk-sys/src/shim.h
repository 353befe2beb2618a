/* What the Rust side needs and a linker cannot give it.
 *
 * Two kinds of function live here. Some wrap DPDK's static inline functions, and do so once
 * per burst. The others keep DPDK's structures on this side of the border, where the C
 * compiler checks every field when DPDK changes. The one exception is rte_mbuf, whose fields
 * are read for each packet: of it, Rust gets the offsets below. */
#ifndef TALLY_DPDK_SHIM_H
#define TALLY_DPDK_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_eal.h>
#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_eth_ring.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_telemetry.h>
#include <rte_version.h>

/* Offsets of the fields of rte_mbuf. Releases move fields, also into anonymous unions, which
 * offsetof looks through and bindgen does not. shim.c asserts the fields' types. */
enum {
	TALLY_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	TALLY_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	TALLY_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	TALLY_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	TALLY_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	TALLY_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	TALLY_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	TALLY_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	TALLY_MBUF_PORT = offsetof(struct rte_mbuf, port),
	TALLY_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	TALLY_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
};

/* Macros that bindgen cannot evaluate by itself. */
enum {
	TALLY_RING_SINGLE_PRODUCER = RING_F_SP_ENQ,
	TALLY_RING_SINGLE_CONSUMER = RING_F_SC_DEQ,
	/* Fields of tx_offload: first bit and number of bits. */
	TALLY_L3_LEN_BIT = RTE_MBUF_L3_LEN_OFS,
	TALLY_L3_LEN_BITS = RTE_MBUF_L3_LEN_BITS,
	TALLY_TSO_SEGSZ_BIT = RTE_MBUF_TSO_SEGSZ_OFS,
	TALLY_TSO_SEGSZ_BITS = RTE_MBUF_TSO_SEGSZ_BITS,
	/* --no-huge excludes --single-file-segments, without which net_memif refuses zero-copy. */
	TALLY_NO_HUGE_FORBIDS_ZERO_COPY = RTE_VERSION >= RTE_VERSION_NUM(25, 11, 0, 0),
};
static const uint64_t TALLY_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t TALLY_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t TALLY_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t TALLY_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t TALLY_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t TALLY_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t TALLY_RX_LRO = RTE_MBUF_F_RX_LRO;

/* What a port can do, from rte_eth_dev_info. */
struct tally_port_info {
	char driver[64];
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint32_t max_rx_pktlen;
	uint32_t if_index;
	bool rx_checksum;
	bool rx_scatter;
	bool tx_multi_segment;
	bool rss;
};

/* What we ask of a port. Offloads not named here are off. */
struct tally_port_conf {
	uint16_t rx_queues;
	uint16_t tx_queues;
	uint16_t mtu; /* 0: leave it */
	bool rx_checksum;
	bool rx_scatter;
	bool tx_multi_segment;
	bool rss;
};

/* What a port has counted, from rte_eth_stats. */
struct tally_port_stats {
	uint64_t rx_frames;
	uint64_t rx_bytes;
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t rx_no_buffer;
	uint64_t tx_frames;
	uint64_t tx_bytes;
	uint64_t tx_errors;
};

/* One of the driver's own counters. */
struct tally_xstat {
	char name[64];
	uint64_t value;
};

struct tally_link {
	uint32_t speed_mbps; /* UINT32_MAX: unknown */
	bool up;
	bool full_duplex;
};

/* The calling thread's rte_errno. */
int tally_errno(void);

uint64_t tally_rdtsc(void);

uint16_t tally_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t n);
uint16_t tally_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t n);

int tally_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int n);
void tally_mbuf_free(struct rte_mbuf *frame);
/* Gives up n references; what stands in the array then is no matter. */
void tally_free_bulk(struct rte_mbuf **frames, unsigned int n);
int tally_mbuf_linearize(struct rte_mbuf *frame);

/* Gives what the calling thread's caches hold back to every pool there is. */
void tally_flush_caches(void);
uint32_t tally_mempool_size(const struct rte_mempool *pool);
/* Frames in the ring that all threads share: without those in caches. */
uint32_t tally_mempool_in_ring(const struct rte_mempool *pool);

/* Frees every frame that waits in the ring; the caller is its only user. */
void tally_ring_free_frames(struct rte_ring *ring);

int tally_port_info_get(uint16_t port, struct tally_port_info *info);
int tally_port_configure(uint16_t port, const struct tally_port_conf *conf);
int tally_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket,
			 struct rte_mempool *pool);
int tally_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket);
/* Runs `job` on the EAL's interrupt thread and waits for it. Negative: it was not run. */
int tally_on_interrupt_thread(void (*job)(void *), void *argument);
int tally_link_get(uint16_t port, struct tally_link *link);
int tally_port_stats_get(uint16_t port, struct tally_port_stats *stats);
/* The driver's own counters, n at most; how many, or a negative error. */
int tally_port_xstats_get(uint16_t port, struct tally_xstat *stats, unsigned int n);
int tally_mac_address_get(uint16_t port, uint8_t address[6]);

/* UDP datagrams to that port of that IPv4 address go to a queue. */
struct tally_udp_rule {
	uint32_t ip; /* network byte order; 0: of any address */
	uint16_t udp_port;
	uint16_t queue;
};

/* Asks the driver whether it would take the rule, and makes it if `make`. Negative: it does not;
 * then `why` has its words, or is empty. */
int tally_udp_rule_apply(uint16_t port, const struct tally_udp_rule *rule, bool make,
			 char *why, size_t why_bytes);
void tally_rules_flush(uint16_t port);

/* Adds a number to a dictionary of the telemetry socket. */
int tally_telemetry_add_number(struct rte_tel_data *data, const char *name, uint64_t value);

#endif
