/*
 * A device that is pulled out, as the connection manager tells it: its connections end, its listeners are made anew,
 * and the next client finds the server. Soft-RoCE cannot be pulled out while a program has it open, so the device stays
 * and only the events are made up: what librdmacm would return comes from here first.
 *
 * Needs an RDMA device with an IPv4 address, like test_rdma_wire.c.
 */
#include <dlfcn.h>

#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000f79u
#define PORT 20951
#define LISTEN "10.99.0.1"

#include "rdma_fixture.h"

#define FAKES 8u

enum { P_NULL, P_SLOW, P_COUNT };

static const struct rpc_procedure procedures[P_COUNT] = {
	[P_NULL] = {"NULL", p_null, 0, 0, NULL},
	[P_SLOW] = {"SLOW", p_slow, 0, 16, NULL},
};
static const struct rpc_program program = {PROGRAM, 1, "test", procedures, P_COUNT, NULL};
static const struct rpc_program *const programs[] = {&program};

/* ------------------------------------------------------------------------------------------------
 * Events
 */

static struct {
	pthread_mutex_t lock;
	struct rdma_event_channel *channel; /* the server's */
	struct rdma_cm_id *id[FAKES];	    /* its listener, then its connections in order of arrival */
	unsigned ids;
	bool removed; /* all that are known are to be told, in place of the next event */
	struct rdma_cm_event fake[FAKES];
	unsigned told;
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note(const struct rdma_cm_event *e)
{
	if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		return;
	events.channel = e->listen_id->channel;
	if (!events.ids)
		events.id[events.ids++] = e->listen_id;
	if (events.ids < FAKES)
		events.id[events.ids++] = e->id;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int (*real)(struct rdma_event_channel *, struct rdma_cm_event **);

	*(void **)&real = dlsym(RTLD_NEXT, "rdma_get_cm_event");
	pthread_mutex_lock(&events.lock);
	if (channel == events.channel && events.removed) {
		struct rdma_cm_event *fake = &events.fake[events.told];
		*fake = (struct rdma_cm_event){.id = events.id[events.told], .event = RDMA_CM_EVENT_DEVICE_REMOVAL};
		*event = fake;
		if (++events.told == events.ids) {
			events.removed = false;
			events.ids = 0;
		}
		pthread_mutex_unlock(&events.lock);
		return 0;
	}
	pthread_mutex_unlock(&events.lock);
	int rc = real(channel, event);
	if (!rc) {
		pthread_mutex_lock(&events.lock);
		note(*event);
		pthread_mutex_unlock(&events.lock);
	}
	return rc;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	int (*real)(struct rdma_cm_event *);

	if (event >= events.fake && event < events.fake + FAKES)
		return 0;
	*(void **)&real = dlsym(RTLD_NEXT, "rdma_ack_cm_event");
	return real(event);
}

/* Of connections that are over. */
static void forget(void)
{
	pthread_mutex_lock(&events.lock);
	events.ids = 0;
	pthread_mutex_unlock(&events.lock);
}

static void remove_device(void)
{
	pthread_mutex_lock(&events.lock);
	assert_true(events.ids > 1);
	events.told = 0;
	events.removed = true;
	pthread_mutex_unlock(&events.lock);
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

/* A client keeps trying; so it is accepted in the end. */
static void open_in_the_end(struct peer *p)
{
	struct peer_options o = {0};

	for (unsigned i = 0; !peer_open(p, address, PORT, o); i++) {
		assert_true(i < 100);
		peer_sleep_us(100000);
	}
}

static void removed(void **state)
{
	struct peer a, b, c;

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		forget();
		open_peer(&a);
		open_peer(&b);
		ping(&a);
		ping(&b);
		call(&b, P_SLOW, 300);
		remove_device();
		open_in_the_end(&c); /* its request is what the connection manager wakes up for */
		assert_true(peer_wait_lost(&a, TAKE) && peer_wait_lost(&b, TAKE));
		ping(&c);
		peer_close(&a);
		peer_close(&b);
		peer_close(&c);
		check_server(0);
	}
	assert_int_equal(atomic_load(&rdma_metrics.connections), 0);
	assert_int_equal(atomic_load(&rdma_metrics.credits), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(removed)};

	if (!fixture_begin())
		return fixture_rc;
	return cmocka_run_group_tests(tests, NULL, teardown);
}
