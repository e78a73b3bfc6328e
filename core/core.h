/*
 * core: what every layer stands on. It knows nothing of storage or of NFS.
 *
 * One reactor runs on each core and owns an io_uring, its timers, its fibers and a mailbox. All
 * code above runs in fibers: straight-line C that waits by switching to another fiber of the same
 * reactor. A fiber never migrates, so data that one reactor owns needs no lock; between two waits
 * nothing else runs there.
 *
 * Words used in these comments:
 *   "waits"      may switch to other fibers; call it from a fiber only, and re-read shared state after
 *   "no wait"    never switches; may be called from a callback too
 *   "any thread" may be called outside of a reactor
 *   errors       are negative errno; a struct error carries the sentence for the administrator
 *
 * Sizes are in bytes, times in nanoseconds, unless a name says otherwise.
 */
#ifndef FURROW_CORE_H
#define FURROW_CORE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <liburing.h>

#include "core/endian.h"
#include "core/htable.h"
#include "core/list.h"

#define BLOCK_BYTES 4096u
#define BLOCK_SHIFT 12

/* ------------------------------------------------------------------------------------------------
 * Errors and log
 */

/* A failure with its sentence: what failed, where (file:line:column, device, address), and why. */
struct error {
	int code; /* negative errno */
	char text[500];
};

/* Fill ERR (which may be NULL) and return CODE, so that `return error_set(...)` reads well. Any thread. */
int error_set(struct error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Put "PREFIX: " in front of the text of ERR; returns its code. */
int error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* One per call site: at most a burst of 10 lines, then one a second with a count of what was left out. */
struct log_site {
	_Atomic uint64_t window;
	_Atomic uint32_t used, dropped;
};
void log_emit(struct log_site *site, enum log_level level, const char *subsystem, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
extern _Atomic int log_threshold;   /* lines above this level are not formatted */
void log_open(bool journal_prefix); /* stderr; "<N>" prefixes for systemd when asked */

#define log_at(level, subsystem, ...)                                                                                  \
	do {                                                                                                           \
		static struct log_site log_site_;                                                                      \
		if ((int)(level) <= atomic_load_explicit(&log_threshold, memory_order_relaxed))                        \
			log_emit(&log_site_, level, subsystem, __VA_ARGS__);                                           \
	} while (0)
/* The line's text is "what happened key=value key=value", all on one line. */
#define log_error(subsystem, ...) log_at(LOG_ERROR, subsystem, __VA_ARGS__)
#define log_warning(subsystem, ...) log_at(LOG_WARNING, subsystem, __VA_ARGS__)
#define log_info(subsystem, ...) log_at(LOG_INFO, subsystem, __VA_ARGS__)
#define log_debug(subsystem, ...) log_at(LOG_DEBUG, subsystem, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------------
 * Time
 */

#define NSEC_PER_SEC 1000000000ull
#define NSEC_PER_MSEC 1000000ull
#define NEVER UINT64_MAX

uint64_t now_ns(void);	/* monotonic. Any thread */
uint64_t wall_ns(void); /* since 1970. Any thread */

/* ------------------------------------------------------------------------------------------------
 * Start and stop
 */

struct core_config {
	unsigned reactors;	 /* 0: one per core that this process may run on */
	uint64_t arena_bytes;	 /* size of the buffer arena; 0: 64 MiB */
	unsigned fibers;	 /* most fibers per reactor; 0: 4096 */
	uint32_t stack_bytes;	 /* per fiber; 0: 64 KiB */
	unsigned helper_threads; /* 0: 4 */
	bool pin;		 /* bind each reactor to its core */
};

/* Builds arena and reactors; nothing runs yet. */
int core_init(const struct core_config *config, struct error *err);
/*
 * Runs MAIN(ARG) as a fiber on reactor 0, which is the calling thread, and the other reactors on
 * threads of their own. Returns when MAIN has returned. Fibers that still wait then are abandoned,
 * so MAIN ends what it started.
 */
void core_run(void (*main)(void *arg), void *arg);
void core_fini(void);
/* core_init, core_run and core_fini in one, for tests and for the offline tool. */
int core_main(const struct core_config *config, void (*main)(void *arg), void *arg, struct error *err);

/* ------------------------------------------------------------------------------------------------
 * Reactors
 */

struct reactor;

unsigned reactor_count(void);		     /* any thread */
unsigned reactor_fibers(void);		     /* most fibers of each reactor; any thread */
struct reactor *reactor_get(unsigned index); /* any thread */
struct reactor *reactor_self(void);	     /* NULL outside of a reactor */
unsigned reactor_index(const struct reactor *reactor);

/* Runs FN(ARG) on REACTOR in its loop, outside of any fiber; FN must not wait. Any thread. Never fails. */
void reactor_post(struct reactor *reactor, void (*fn)(void *arg), void *arg);
/* Starts a fiber on REACTOR. Any thread. When all fibers are taken it starts as soon as one ends. */
void reactor_spawn(struct reactor *reactor, void (*fn)(void *arg), void *arg);
/*
 * Runs FN(ARG) in a fiber on REACTOR and waits for its end; calls it directly when REACTOR is this one. A thread
 * that is no reactor may call it too: the thread blocks meanwhile.
 */
void reactor_call(struct reactor *reactor, void (*fn)(void *arg), void *arg);
/*
 * As reactor_post() and, with spawn set, as reactor_spawn(), in memory that the caller gives: it stays the
 * reactor's until FN is called, and FN may free it or send it on. Messages from one thread to one reactor keep
 * their order. Any thread.
 */
struct mail {
	struct mail *next;
	void (*fn)(void *arg);
	void *arg;
	bool spawn;  /* run FN in a fiber */
	bool pooled; /* of core alone */
};
void reactor_mail(struct reactor *reactor, struct mail *mail);
/* Runs FN(ARG), which may block, on a helper thread and waits for its end. Outside of a fiber it calls it directly. */
void offload(void (*fn)(void *arg), void *arg);

/*
 * A source of events that is polled instead of interrupting (an RDMA completion queue). poll()
 * returns how many events it took. Before the reactor sleeps it calls arm(): the source asks for
 * an interrupt (its file descriptor is watched with an io of its own) and returns true when events
 * came meanwhile, so that sleeping would lose them. Registered on the calling reactor. Both run
 * outside of fibers and must not wait.
 */
struct poller {
	int (*poll)(struct poller *poller);
	bool (*arm)(struct poller *poller);
	struct list_node node;
};
void poller_add(struct poller *poller);
void poller_remove(struct poller *poller);

/*
 * What puts operations together while fibers run and starts them on the ring when the loop is about to submit: START is
 * called then, once, outside of fibers, and must not wait. plug_hold() says that there is one operation more; of the
 * calling reactor, and no wait.
 */
struct plug {
	void (*start)(struct plug *plug);
	struct list_node node;
};
void plug_hold(struct plug *plug);

/*
 * FN is called on SIGTERM, SIGINT and SIGHUP in the loop of reactor 0 (signalfd); it must not wait. Call it before
 * other libraries start threads, so that these inherit the blocked signals.
 */
void signals_watch(void (*fn)(int signal, void *arg), void *arg);

/* ------------------------------------------------------------------------------------------------
 * Fibers: all of this is for fibers of one reactor, among themselves
 */

struct fiber;

struct fiber *fiber_self(void); /* NULL outside of a fiber */
/* Starts a fiber here; it first runs when the caller waits. -EAGAIN when all are taken. No wait. */
int fiber_spawn(void (*fn)(void *arg), void *arg);
int fiber_start(struct mail *mail); /* the same for mail->fn(mail->arg): MAIL stays the reactor's until it is called */
void fiber_yield(void);		    /* waits: lets the others run once */
void fiber_sleep(uint64_t ns);	    /* waits */
void fiber_suspend(void);	    /* waits until fiber_wake(); a wake that came first is remembered */
void fiber_wake(struct fiber *fiber); /* no wait; same reactor only (else reactor_post) */
/* As fiber_suspend(), until DEADLINE at the latest: 0 or -ETIME. */
int fiber_suspend_until(uint64_t deadline);

struct wait_queue {
	struct list waiters;
};
#define WAIT_QUEUE_INIT(q)                                                                                             \
	{                                                                                                              \
		.waiters = LIST_INIT((q).waiters)                                                                      \
	}
void wait_queue_init(struct wait_queue *queue);
int wait_queue_wait(struct wait_queue *queue, uint64_t deadline); /* waits: 0 when woken, -ETIME */
bool wait_queue_wake_one(struct wait_queue *queue);		  /* first come, first served */
void wait_queue_wake_all(struct wait_queue *queue);

struct fiber_mutex {
	struct fiber *owner;
	struct wait_queue queue;
};
void fiber_mutex_init(struct fiber_mutex *mutex);
void fiber_lock(struct fiber_mutex *mutex); /* waits, in order of arrival */
bool fiber_trylock(struct fiber_mutex *mutex);
void fiber_unlock(struct fiber_mutex *mutex); /* hands over to the first that waits */

/* Waits for a number of things to end. */
struct wait_group {
	unsigned pending;
	int error; /* the first error given to wait_group_done */
	struct fiber *waiter;
};
void wait_group_init(struct wait_group *group);
void wait_group_add(struct wait_group *group, unsigned count); /* no wait */
void wait_group_done(struct wait_group *group, int error);     /* no wait; error 0 or negative */
int wait_group_wait(struct wait_group *group);		       /* waits; returns the first error */

/* ------------------------------------------------------------------------------------------------
 * Timers: on the calling reactor; fn runs outside of fibers and must not wait
 */

struct timer {
	uint64_t expires;
	void (*fn)(struct timer *timer);
	uint32_t slot; /* place in the reactor's heap; 0 when not armed */
	struct reactor *reactor;
};
void timer_init(struct timer *timer, void (*fn)(struct timer *timer));
void timer_start(struct timer *timer, uint64_t expires); /* arms or moves it */
void timer_stop(struct timer *timer);

/* ------------------------------------------------------------------------------------------------
 * io_uring: one operation in flight
 */

/*
 * The owner keeps it in memory until its last completion came. With done == NULL a fiber waits for
 * it with io_wait(). A multishot operation calls done for each completion; flags tells the last
 * one (no IORING_CQE_F_MORE).
 */
struct io {
	void (*done)(struct io *io); /* in the loop, must not wait */
	int32_t res;
	uint32_t flags;
	uint64_t extra[2]; /* the second half of a CQE32; NVMe passthrough leaves its result in [0] */
	struct fiber *waiter;
	bool pending;
};

/*
 * A zeroed SQE (128 bytes when reactor_has_passthrough()) whose user_data names IO. Fill it with
 * io_uring_prep_* (which keep user_data only if set after them: call io_link() last) or by hand.
 * Never NULL: submits when the ring is full. It is submitted by the loop, at the latest when it
 * sleeps. No wait.
 */
struct io_uring_sqe *io_start(struct io *io);
void io_link(struct io_uring_sqe *sqe, struct io *io); /* sets user_data again after a prep */
int io_wait(struct io *io);			       /* waits; returns res */
/* As io_wait(); -ETIME when DEADLINE passed: the operation then still owns its memory. */
int io_wait_until(struct io *io, uint64_t deadline);
void io_cancel(struct io *io);	    /* asks the kernel to end it early; its completion still comes. No wait */
bool reactor_has_passthrough(void); /* ring made with SQE128 and CQE32 */
struct io_uring *reactor_ring(void);

/* ------------------------------------------------------------------------------------------------
 * Buffer arena: all payload, from the wire to the drives
 */

/*
 * The arena is one mapping on huge pages (ordinary pages where there are none), cut into pieces of
 * 256 KiB. A buffer is 4 KiB << n up to 256 KiB, aligned to its size, and never crosses a piece:
 * a piece is what io_uring registers, and no drive command may cross one. Freed buffers go to a
 * LIFO cache of the freeing core, so that memory just used is used again while it is in the cache.
 */
#define ARENA_PIECE 262144u
#define BUF_MAX ARENA_PIECE

struct buf {
	uint8_t *data;
	uint32_t size;
	_Atomic uint32_t refs;
	int32_t fixed_index;   /* index of the registered piece on every reactor's ring, or -1 */
	struct list_node node; /* free for the owner's use; unlinked when the last reference is put */
};

/* A buffer of at least SIZE (rounded up to 4 KiB << n) with one reference; waits while there is none. SIZE <= BUF_MAX.
 */
struct buf *buf_alloc(uint32_t size);
struct buf *buf_try_alloc(uint32_t size); /* NULL when there is none. No wait */
struct buf *buf_ref(struct buf *buf);	  /* any thread */
void buf_put(struct buf *buf);		  /* any reactor; the last reference frees it. NULL is ignored */
struct buf *buf_zero(
	void); /* BUF_MAX zero bytes that nobody writes to, without a reference: it stays. Ref what is put */
void arena_region(void **base, uint64_t *bytes); /* to register it as one RDMA memory region. Any thread */
uint64_t arena_free_bytes(void);		 /* for admission and for metrics; approximate. Any thread */
uint64_t arena_total_bytes(void);

/*
 * Buffers that their holder could do without: a cache. While somebody finds no buffer, GIVE is called on REACTOR, in
 * the loop or in a fiber that asks for memory: it puts buffers of BYTES bytes together if it has so many, and returns
 * how many. It must not wait, nor take buffers. Add and remove it on that reactor; removing waits. A cache takes
 * nothing in while buf_wanted(): nobody asks it again for that.
 */
struct buf_reserve {
	uint64_t (*give)(struct buf_reserve *reserve, uint64_t bytes);
	struct reactor *reactor;
	struct list_node node;
	struct mail mail;
	bool posted, removed;
};
void buf_reserve_add(struct buf_reserve *reserve);
void buf_reserve_remove(struct buf_reserve *reserve);
bool buf_wanted(void); /* a fiber waits for a buffer. Any thread */

/* A piece of payload: LEN bytes at OFF in BUF. An array of them is a scatter/gather list. */
struct slice {
	struct buf *buf;
	uint32_t off, len;
};
static inline uint8_t *slice_data(const struct slice *s)
{
	return s->buf->data + s->off;
}
uint64_t slices_bytes(const struct slice *v, unsigned n);
void slices_put(const struct slice *v, unsigned n);
/* The part [off, off+len) of V, without new references; returns the number of slices in OUT, or -ENOSPC beyond MAX. */
int slices_cut(const struct slice *v, unsigned n, uint64_t off, uint64_t len, struct slice *out, unsigned max);
/* These copy, and count it (metric furrow_copied_bytes_total). */
void slices_copy_in(const struct slice *v, unsigned n, uint64_t off, const void *from, uint64_t len);
void slices_copy_out(const struct slice *v, unsigned n, uint64_t off, void *to, uint64_t len);
void slices_zero(const struct slice *v, unsigned n, uint64_t off, uint64_t len);

/* ------------------------------------------------------------------------------------------------
 * Checksums: XXH3 compiled in, instruction set chosen at start
 */

uint64_t checksum64(const void *data, size_t bytes, uint64_t seed);
uint32_t checksum32(const void *data, size_t bytes); /* low half of the above with seed 0 */

/* ------------------------------------------------------------------------------------------------
 * Metrics: per core without atomics, summed on read
 */

#define METRIC_SLOTS 65 /* 64 reactors and one shared by all other threads */

struct counter {
	const char *name, *labels, *help; /* labels: "op=\"read\",dir=\"in\"", or NULL */
	struct {
		_Atomic uint64_t value;
	} __attribute__((aligned(64))) slot[METRIC_SLOTS];
	/* Of one that is not added to, but summed up elsewhere: what it is when asked for. Any thread. May be NULL. */
	uint64_t (*read)(void *arg);
	void *arg;
	struct list_node node;
};
/* NAME ends in _total. The counter lives until counter_remove(). To register twice does no harm. Any thread. */
void counter_register(struct counter *counter, const char *name, const char *labels, const char *help);
void counter_add(struct counter *counter, uint64_t value); /* any thread */
uint64_t counter_read(const struct counter *counter);
void counter_remove(struct counter *counter);

/* A value that is read when asked for. */
struct gauge {
	const char *name, *labels, *help;
	double (*read)(void *arg); /* any thread */
	void *arg;
	struct list_node node;
};
void gauge_register(struct gauge *gauge);
void gauge_remove(struct gauge *gauge);

/* Log-linear: 8 steps to each doubling, from 1 ns to 2^40 ns. */
#define HISTOGRAM_BUCKETS (8 * 41)
struct histogram {
	const char *name, *labels, *help;
	struct histogram_slot {
		_Atomic uint64_t sum, max, bucket[HISTOGRAM_BUCKETS];
	} * slot; /* one per reactor, allocated by histogram_register() */
	/* Of one that is not recorded, but summed up elsewhere: fills TO in for the page of metrics. May be NULL. */
	void (*gather)(void *arg, struct histogram_slot *to);
	void *arg;
	struct list_node node;
};
/* NAME ends in _seconds: it is exported in seconds. 0 or -ENOMEM; to register twice does no harm. */
int histogram_register(struct histogram *histogram, const char *name, const char *labels, const char *help);
void histogram_remove(struct histogram *histogram); /* also frees its slots */
void histogram_record(struct histogram *histogram, uint64_t ns);
unsigned histogram_bucket(uint64_t ns);					  /* that it is counted in */
uint64_t histogram_quantile(const struct histogram *histogram, double q); /* ns */
uint64_t histogram_count(const struct histogram *histogram);
/* Calls FN for each histogram of that name. FN must not wait nor register anything. Any thread. */
void histograms_foreach(const char *name, void (*fn)(void *arg, const struct histogram *histogram), void *arg);
/* All metrics in the Prometheus text format. Any thread. */
void metrics_write(FILE *out);

#endif
