/*
 * RPC over TCP, connections beside each other: peers that read slowly or never, that close midway, that are many;
 * little memory; and a server that stops while calls run.
 */
#include "tests/rpcrdma/tcp_program.h"

static int start_shares(void **state)
{
	(void)state;
	return start_with((struct rpc_server_config){.memory = 16 * MIB});
}

static int start_small(void **state)
{
	(void)state;
	return start_with((struct rpc_server_config){.memory = 2 * MIB, .connections = 8});
}

#define IDLE_CLOSE NSEC_PER_SEC

static int start_few(void **state)
{
	(void)state;
	return start_with(
		(struct rpc_server_config){.connections = 8, .client_connections = 6, .idle_close = IDLE_CLOSE});
}

/* A peer that asks for a lot and reads nothing: bounded, and the others go on. */
static void test_slow_reader(void **state)
{
	(void)state;
	enum { CALLS = 100 };
	int fd = client(), small = 65536;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	atomic_store(&reads, 0);
	for (uint32_t i = 0; i < CALLS; i++)
		send_words(fd, i + 1, P_READ, 2, MIB, i);
	wait_for(atomic_load(&reads) >= 4);
	usleep(300000);
	assert_true(atomic_load(&reads) < 30); /* what the sockets and the connection's share of memory take */
	null_works();
	for (uint32_t i = 0; i < CALLS; i++) {
		uint32_t len;
		uint8_t *p = get_success(fd, 0, &len);
		read_check(p, len, MIB, word(p, 0) - 1);
		free(p);
	}
	assert_int_equal(atomic_load(&reads), CALLS);
	close(fd);
}

/* How long a few short calls of new clients take. */
static uint64_t others_take(void)
{
	uint64_t before = now_ns();
	uint32_t len;
	for (int i = 0; i < 10; i++) {
		int fd = client();
		send_words(fd, 1, P_NULL, 0, 0, 0);
		free(get_success(fd, 1, &len));
		send_words(fd, 2, P_READ, 2, 65536, 1);
		free(get_success(fd, 2, &len));
		close(fd);
	}
	return now_ns() - before;
}

/* Peers that ask for a lot and read nothing: others do not notice, long before those are closed. */
static void test_shares(void **state)
{
	(void)state;
	enum { SLOW = 8, CALLS = 120 };
	int slow[SLOW], small = 65536;
	uint32_t len;
	uint64_t alone = others_take(); /* the machine may be busy */
	for (int i = 0; i < SLOW; i++) {
		slow[i] = client();
		setsockopt(slow[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		for (uint32_t k = 0; k < CALLS; k++)
			send_words(slow[i], k + 1, P_READ, 2, MIB, k);
	}
	for (uint32_t before = UINT32_MAX; before != atomic_load(&reads);) { /* until none of them gets more */
		before = atomic_load(&reads);
		usleep(300000);
	}
	assert_true(others_take() < 1500 * NSEC_PER_MSEC + 20 * alone);
	/* and they get all of it when they do read */
	for (uint32_t k = 0; k < CALLS; k++)
		free(get_success(slow[0], 0, &len));
	for (int i = 0; i < SLOW; i++)
		close(slow[i]);
}

/* As above, and goes away without reading. */
static void test_rude_reader(void **state)
{
	(void)state;
	struct linger rst = {.l_onoff = 1};
	for (int reset = 0; reset < 2; reset++) {
		int fd = client();
		for (uint32_t i = 0; i < 60; i++)
			send_words(fd, i + 1, P_READ, 2, MIB, i);
		usleep(30000);
		if (reset)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
		close(fd);
		wait_for(connections_now() == 0);
	}
	null_works();
}

static void test_drop_and_half_close(void **state)
{
	(void)state;
	int fd = client();
	uint32_t len;
	send_words(fd, 1, P_DROP, 0, 0, 0);
	assert_true(silent(fd, 30));
	/* Everything was sent, and the other direction still works. */
	send_words(fd, 2, P_SLEEP, 1, 40, 0);
	send_words(fd, 3, P_READ, 2, MIB, 9);
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 2; i++) {
		uint8_t *p = get_success(fd, 0, &len);
		free(p);
	}
	assert_true(closed(fd));
	close(fd);
}

static void test_parallel(void **state)
{
	(void)state;
	int fd = client();
	uint32_t len;
	uint64_t begin = now_ns();
	for (uint32_t i = 1; i <= 100; i++)
		send_words(fd, i, P_SLEEP, 1, 100, 0);
	for (uint32_t i = 1; i <= 100; i++)
		free(get_success(fd, 0, &len));
	assert_true(now_ns() - begin < 3 * NSEC_PER_SEC); /* one after the other: 10 s */
	close(fd);
}

static void test_close_midway(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++) {
		int fd = client();
		struct message m;
		message_begin(&m, MIB + 100, 5, 4, P_WRITE);
		xdr_put_u32(&m.out, MIB);
		m.out.p += MIB;
		memset(m.out.p - MIB, 1, MIB);
		xdr_put_u32(&m.out, 1);
		uint32_t len = message_mark(&m);
		put_all(fd, m.bytes, len * (uint32_t)i / 30);
		if (i % 3 == 0)
			send_words(fd, 1, P_SLEEP, 1, 20, 0);
		close(fd);
		free(m.bytes);
	}
	int fd = client();
	send_words(fd, 1, P_SLEEP, 1, 30, 0);
	close(fd);
	null_works();
}

struct listing {
	unsigned count, on[2];
	uint64_t calls;
};

static void list_one(void *arg, const struct rpc_connection_info *info)
{
	struct listing *l = arg;
	assert(!strcmp(info->peer, "127.0.0.1") && !info->rdma);
	l->count++;
	l->on[info->reactor]++;
	l->calls += info->calls;
}

static void test_connections(void **state)
{
	(void)state;
	enum { N = 200 };
	int fd[N];
	uint32_t len;
	uint64_t free_idle = arena_free_bytes();
	for (int i = 0; i < N; i++)
		fd[i] = client();
	wait_for(connections_now() == N);
	/* An idle connection holds no buffer: only the rings of the two reactors are there. */
	assert_true(free_idle - arena_free_bytes() <= 2 * 256 * 8192 + 65536);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < N; i++)
			send_words(fd[i], (uint32_t)(i + 1), round % 2 ? P_NULL : P_READ, 2, 10000, 3);
		for (int i = 0; i < N; i++)
			free(get_success(fd[i], (uint32_t)(i + 1), &len));
	}
	struct listing l = {0};
	rpc_connections_foreach(server, list_one, &l);
	assert_int_equal(l.count, N);
	assert_int_equal(l.calls, 5 * N);
	assert_true(l.on[0] >= 80 && l.on[1] >= 80);
	for (int i = 0; i < N; i++)
		close(fd[i]);
}

static void test_stop_running(void **state)
{
	(void)state;
	int fd = client(), idle = client(), partial = client(), blocked = client();
	uint32_t len;
	atomic_store(&slept, 0);
	put_all(partial, "\200\0\1\0abc", 7);
	for (uint32_t i = 0; i < 20; i++)
		send_words(blocked, i + 1, P_READ, 2, MIB, i);
	for (uint32_t i = 1; i <= 10; i++)
		send_words(fd, i, P_SLEEP, 1, 150, 0);
	wait_for(atomic_load(&slept) == 10);
	uint64_t begin = now_ns();
	/* so that replies which nobody reads do not hold it up for the whole grace */
	close(blocked);
	reactor_call(reactor_get(1), do_stop, NULL);
	assert_true(now_ns() - begin < 4 * NSEC_PER_SEC);
	/* those that ran were answered */
	for (uint32_t i = 1; i <= 10; i++)
		free(get_success(fd, 0, &len));
	assert_true(closed(fd) && closed(idle) && closed(partial));
	close(fd);
	close(idle);
	close(partial);
}

/* With hardly any memory everything is answered all the same, only later. */
static void test_little_memory(void **state)
{
	(void)state;
	enum { N = 8 };
	int fd[N];
	uint32_t len;
	for (int i = 0; i < N; i++)
		fd[i] = client();
	for (uint32_t round = 0; round < 40; round++)
		for (int i = 0; i < N; i++)
			send_words(fd[i], round + 1, round % 4 ? P_READ : P_SLEEP, 2, round % 4 ? 300000 : 1, round);
	/* Reads where there is something: who lets one connection wait for another holds memory that the other needs.
	 */
	struct pollfd p[N];
	for (int i = 0; i < N; i++)
		p[i] = (struct pollfd){.fd = fd[i], .events = POLLIN};
	for (int left = 40 * N; left;) {
		assert_true(poll(p, N, 5000) > 0);
		for (int i = 0; i < N; i++)
			if (p[i].revents) {
				free(get_success(fd[i], 0, &len));
				left--;
			}
	}
	/* and beyond the limit of connections one is closed at once */
	int more = client();
	assert_true(closed(more));
	close(more);
	for (int i = 1; i < N; i++)
		close(fd[i]);
	wait_for(connections_now() == 1);
	write_once(fd[0], MIB, 1);
	write_once(fd[0], MIB, 100);
	close(fd[0]);
}

/* A connection of the machine 127.0.0.HOST; -1 when it is closed at once. */
static int client_of(uint8_t host)
{
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u | host)};
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint32_t len;
	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	send_words(fd, 1, P_NULL, 0, 0, 0);
	assert_true(poll(&p, 1, 5000) > 0);
	char c;
	if (recv(fd, &c, 1, MSG_PEEK) <= 0) {
		close(fd);
		return -1;
	}
	free(get_success(fd, 1, &len));
	return fd;
}

/* One client cannot have all connections, and those that nobody uses make room when there are too many. */
static void test_connections_short(void **state)
{
	(void)state;
	int one[6], two[2];
	uint32_t len;
	for (int i = 0; i < 6; i++)
		assert_true((one[i] = client_of(1)) >= 0);
	assert_int_equal(client_of(1), -1);
	for (int i = 0; i < 2; i++)
		assert_true((two[i] = client_of(2)) >= 0);
	assert_int_equal(client_of(3), -1); /* 8 in all */
	wait_for(connections_now() == 8);
	send_words(one[0], 7, P_SLEEP, 1, 3000, 0); /* waits for its answer, so it is not idle */
	usleep(IDLE_CLOSE / 1000 + 100000);
	int three = -1;
	for (uint64_t deadline = now_ns() + 5 * NSEC_PER_SEC; three < 0 && now_ns() < deadline; usleep(20000)) {
		send_words(one[1], 2, P_NULL, 0, 0, 0); /* speaks now and then */
		free(get_success(one[1], 2, &len));
		three = client_of(3);
	}
	assert_true(three >= 0);
	for (int i = 2; i < 6; i++)
		assert_true(closed(one[i]));
	assert_true(closed(two[0]) && closed(two[1]));
	send_words(one[1], 3, P_NULL, 0, 0, 0);
	free(get_success(one[1], 3, &len));
	free(get_success(one[0], 7, &len));
	close(three);
	for (int i = 0; i < 6; i++)
		close(one[i]);
	for (int i = 0; i < 2; i++)
		close(two[i]);
}

/* Hundreds of calls that wait for admission, dropped at once: their connections close, or the server stops. */
static void test_waiting_dropped(void **state)
{
	(void)state;
	enum { N = 8 };
	for (int how = 0; how < 2; how++) {
		int fd[N];
		atomic_store(&slept, 0);
		for (int i = 0; i < N; i++)
			fd[i] = client();
		for (int i = 0; i < N; i++)
			for (uint32_t k = 1; k <= 128; k++)
				send_words(fd[i], k, P_SLEEP, 1, 400, 0);
		wait_for(atomic_load(&slept) >= 150);
		assert_true(atomic_load(&slept) <= 2 * MIB / 8192 + 2);
		if (how == 1)
			reactor_call(reactor_get(0), do_stop, NULL);
		for (int i = 0; i < N; i++)
			close(fd[i]);
		if (how == 0)
			wait_for(connections_now() == 0);
	}
}

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_slow_reader, start, stop),
		cmocka_unit_test_setup_teardown(test_shares, start_shares, stop),
		cmocka_unit_test_setup_teardown(test_rude_reader, start, stop),
		cmocka_unit_test_setup_teardown(test_drop_and_half_close, start, stop),
		cmocka_unit_test_setup_teardown(test_parallel, start, stop),
		cmocka_unit_test_setup_teardown(test_close_midway, start, stop),
		cmocka_unit_test_setup_teardown(test_connections, start, stop),
		cmocka_unit_test_setup_teardown(test_stop_running, start, stop),
		cmocka_unit_test_setup_teardown(test_little_memory, start_small, stop),
		cmocka_unit_test_setup_teardown(test_waiting_dropped, start_small, stop),
		cmocka_unit_test_setup_teardown(test_connections_short, start_few, stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
