/*
 * A peer of the RDMA transport made of bare verbs: it sends what it is told to, legal or not. For tests only. All of
 * its memory is one region that the server may read and write, so that every chunk is an offset in it.
 */
#ifndef FURROW_TESTS_RDMA_PEER_H
#define FURROW_TESTS_RDMA_PEER_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PEER_MEMORY (8u << 20)
#define PEER_SLOTS 256u /* receives, and messages being sent */
#define PEER_SLOT 8192u

struct peer {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *slot_mr;
	uint8_t *memory; /* for chunks */
	uint8_t *slots;	 /* PEER_SLOTS to receive into, then as many to send from */
	unsigned next_send;
	/* messages received and not taken */
	struct {
		unsigned slot;
		uint32_t bytes;
	} inbox[PEER_SLOTS];
	unsigned inbox_first, inbox_count;
	bool lost; /* a work request failed or was flushed */
	uint8_t private_data[64];
	unsigned private_bytes;
};

struct peer_options {
	bool no_private; /* RFC 8166 alone: 1024 bytes inline */
	bool no_reads;	 /* serves no RDMA Reads */
	bool no_receives;
	bool few_retries; /* of the server's sends, so that a dead peer is found soon */
};

static inline uint64_t peer_now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline void peer_sleep_us(unsigned us)
{
	struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
	nanosleep(&t, NULL);
}

static inline bool peer_event(struct peer *p, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	if (rdma_get_cm_event(p->channel, &e))
		return false;
	bool got = e->event == want;
	if (got && want == RDMA_CM_EVENT_ESTABLISHED && e->param.conn.private_data_len) {
		p->private_bytes = e->param.conn.private_data_len < sizeof p->private_data
					   ? e->param.conn.private_data_len
					   : (unsigned)sizeof p->private_data;
		memcpy(p->private_data, e->param.conn.private_data, p->private_bytes);
	}
	rdma_ack_cm_event(e);
	return got;
}

static inline void peer_receive(struct peer *p, unsigned slot)
{
	struct ibv_sge sge = {(uintptr_t)(p->slots + slot * PEER_SLOT), PEER_SLOT, p->slot_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;
	if (ibv_post_recv(p->id->qp, &wr, &bad))
		p->lost = true;
}

static inline void peer_close(struct peer *p)
{
	if (p->id && p->id->qp) {
		rdma_disconnect(p->id);
		rdma_destroy_qp(p->id);
	}
	if (p->mr)
		ibv_dereg_mr(p->mr);
	if (p->slot_mr)
		ibv_dereg_mr(p->slot_mr);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->pd)
		ibv_dealloc_pd(p->pd);
	if (p->id)
		rdma_destroy_id(p->id);
	if (p->channel)
		rdma_destroy_event_channel(p->channel);
	free(p->memory);
	free(p->slots);
	memset(p, 0, sizeof *p);
}

static inline bool peer_open(struct peer *p, const char *address, uint16_t port, struct peer_options options)
{
	static const uint8_t private_data[8] = {0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3};
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
	memset(p, 0, sizeof *p);
	inet_pton(AF_INET, address, &to.sin_addr);
	p->channel = rdma_create_event_channel();
	if (!p->channel || rdma_create_id(p->channel, &p->id, NULL, RDMA_PS_TCP) ||
		rdma_resolve_addr(p->id, NULL, (struct sockaddr *)&to, 2000) ||
		!peer_event(p, RDMA_CM_EVENT_ADDR_RESOLVED) || rdma_resolve_route(p->id, 2000) ||
		!peer_event(p, RDMA_CM_EVENT_ROUTE_RESOLVED))
		goto failed;
	p->pd = ibv_alloc_pd(p->id->verbs);
	p->cq = ibv_create_cq(p->id->verbs, 4 * PEER_SLOTS, NULL, NULL, 0);
	p->memory = aligned_alloc(4096, PEER_MEMORY);
	p->slots = aligned_alloc(4096, 2 * PEER_SLOTS * PEER_SLOT);
	if (!p->pd || !p->cq || !p->memory || !p->slots)
		goto failed;
	memset(p->memory, 0, PEER_MEMORY);
	p->mr = ibv_reg_mr(p->pd, p->memory, PEER_MEMORY,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	p->slot_mr = ibv_reg_mr(p->pd, p->slots, 2 * PEER_SLOTS * PEER_SLOT, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr qp = {.send_cq = p->cq,
		.recv_cq = p->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = PEER_SLOTS, .max_recv_wr = PEER_SLOTS, .max_send_sge = 1, .max_recv_sge = 1}};
	if (!p->mr || !p->slot_mr || rdma_create_qp(p->id, p->pd, &qp))
		goto failed;
	for (unsigned i = 0; i < PEER_SLOTS && !options.no_receives; i++)
		peer_receive(p, i);
	struct rdma_conn_param param = {.private_data = private_data,
		.private_data_len = options.no_private ? 0 : sizeof private_data,
		.responder_resources = options.no_reads ? 0 : 16,
		.retry_count = options.few_retries ? 1 : 7,
		.rnr_retry_count = 7};
	if (rdma_connect(p->id, &param) || !peer_event(p, RDMA_CM_EVENT_ESTABLISHED))
		goto failed;
	return true;
failed:
	peer_close(p);
	return false;
}

static inline bool peer_send(struct peer *p, const void *data, uint32_t bytes)
{
	unsigned slot = PEER_SLOTS + p->next_send++ % PEER_SLOTS;
	uint8_t *at = p->slots + slot * PEER_SLOT;
	memcpy(at, data, bytes);
	struct ibv_sge sge = {(uintptr_t)at, bytes, p->slot_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = slot,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .opcode = IBV_WR_SEND,
				   .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	return ibv_post_send(p->id->qp, &wr, &bad) == 0;
}

static inline void peer_poll(struct peer *p)
{
	struct ibv_wc wc;
	struct pollfd fd = {.fd = p->channel->fd, .events = POLLIN};
	if (!p->lost && poll(&fd, 1, 0) > 0 && peer_event(p, RDMA_CM_EVENT_DISCONNECTED))
		p->lost = true;
	while (ibv_poll_cq(p->cq, 1, &wc) > 0) {
		if (wc.status != IBV_WC_SUCCESS)
			p->lost = true;
		else if (wc.wr_id < PEER_SLOTS) {
			unsigned at = (p->inbox_first + p->inbox_count++) % PEER_SLOTS;
			p->inbox[at].slot = (unsigned)wc.wr_id;
			p->inbox[at].bytes = wc.byte_len;
		}
	}
}

/* Bytes of the next message, in TO; -1 when the connection is lost, -2 when none came in that time. */
static inline int peer_take(struct peer *p, uint8_t to[PEER_SLOT], unsigned ms)
{
	uint64_t end = peer_now_ms() + ms;
	for (;;) {
		peer_poll(p);
		if (p->inbox_count) {
			unsigned at = p->inbox_first++ % PEER_SLOTS;
			p->inbox_first %= PEER_SLOTS;
			p->inbox_count--;
			memcpy(to, p->slots + p->inbox[at].slot * PEER_SLOT, p->inbox[at].bytes);
			peer_receive(p, p->inbox[at].slot);
			return (int)p->inbox[at].bytes;
		}
		if (p->lost)
			return -1;
		if (peer_now_ms() >= end)
			return -2;
		peer_sleep_us(200);
	}
}

/* True when the server closes the connection within that time. */
static inline bool peer_wait_lost(struct peer *p, unsigned ms)
{
	uint64_t end = peer_now_ms() + ms;
	while (!p->lost && peer_now_ms() < end) {
		peer_poll(p);
		peer_sleep_us(500);
	}
	return p->lost;
}

#endif
