/*
 * lookup: what must be asked of other services, and may take seconds: the groups of a user, names and numbers of users
 * and groups (passwd, group, LDAP: whatever nsswitch.conf names), the addresses of a host's name, the members of a
 * netgroup.
 *
 * Answers are kept, the least recently used make room, under a mutex that nobody waits under. Questions run on
 * helper threads, one for the same thing at a time. Who asks what is being asked already waits for that answer, though
 * not longer than LOOKUP_WAIT; where there is an older answer, it is taken instead. A service that fails leaves the
 * older answer in force and is asked again after a while: an LDAP server's restart locks nobody out.
 *
 * Error policy: none are told. What is not known is no group and no match.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <netdb.h>
#include <pthread.h>
#include <pwd.h>
#include <stdlib.h>

#include "server/nfs_internal.h"

#define ENTRIES_MAX 4096u
#define KEEP_NS (300 * NSEC_PER_SEC)
#define RETRY_NS (60 * NSEC_PER_SEC) /* after a failure, and of what does not exist */
#define LOOKUP_WAIT (5 * NSEC_PER_SEC)
#define LOOKUP_POLL (5 * NSEC_PER_MSEC)
#define ADDRESSES_MAX 16u
#define PASSWD_BYTES 16384u

/* count -1: there is no such thing. */
struct answer {
	int count;
	union {
		gid_t group[FS_GROUPS_MAX];
		struct in6_addr address[ADDRESSES_MAX]; /* IPv4 as v4-mapped */
		char name[LOOKUP_NAME_MAX];
		uint32_t number;
	};
};

/* On a helper thread. False: it could not be found out now. */
typedef bool question(const void *key, size_t len, struct answer *answer);

struct entry {
	question *ask;
	bool asking, answered;
	uint64_t until;
	struct answer answer;
	struct htable_node node;
	struct list_node recent;
	size_t len;
	uint8_t key[];
};

static struct {
	pthread_mutex_t mutex;
	struct htable table;
	struct list recent; /* the last one first */
} cache = {.mutex = PTHREAD_MUTEX_INITIALIZER, .recent = LIST_INIT(cache.recent)};

/* ------------------------------------------------------------------------------------------------
 * What is kept
 */

static uint64_t entry_hash(question *ask, const void *key, size_t len)
{
	return checksum64(key, len, (uint64_t)(uintptr_t)ask);
}

static struct entry *entry_find(question *ask, const void *key, size_t len)
{
	uint64_t hash = entry_hash(ask, key, len);

	htable_foreach_hash (n, &cache.table, hash) {
		struct entry *e = container_of(n, struct entry, node);
		if (e->ask == ask && e->len == len && !memcmp(e->key, key, len))
			return e;
	}
	return NULL;
}

static void entry_free(struct entry *e)
{
	htable_remove(&cache.table, &e->node);
	list_remove(&e->recent);
	free(e);
}

static struct entry *entry_make(question *ask, const void *key, size_t len)
{
	if (!cache.table.bucket && htable_init(&cache.table, 64))
		return NULL;
	if (cache.table.count >= ENTRIES_MAX) {
		struct entry *oldest = container_of(list_last(&cache.recent), struct entry, recent);
		if (oldest->asking)
			return NULL;
		entry_free(oldest);
	}
	struct entry *e = calloc(1, sizeof(*e) + len);
	if (!e)
		return NULL;
	e->ask = ask;
	e->len = len;
	memcpy(e->key, key, len);
	htable_insert(&cache.table, &e->node, entry_hash(ask, key, len));
	list_push_front(&cache.recent, &e->recent);
	return e;
}

void lookup_fini(void)
{
	pthread_mutex_lock(&cache.mutex);
	list_foreach (n, &cache.recent)
		entry_free(container_of(n, struct entry, recent));
	htable_fini(&cache.table);
	pthread_mutex_unlock(&cache.mutex);
}

/* ------------------------------------------------------------------------------------------------
 * Asking
 */

enum next { TAKE_IT, ASK, WAIT };

/* ASK: *ENTRY is the caller's to fill, or NULL when nothing can be kept. */
static enum next cache_look(question *ask, const void *key, size_t len, struct answer *answer, struct entry **entry)
{
	enum next next = ASK;

	pthread_mutex_lock(&cache.mutex);
	struct entry *e = cache.table.bucket ? entry_find(ask, key, len) : NULL;
	if (e && e->answered && (e->asking || now_ns() < e->until)) {
		*answer = e->answer;
		list_remove(&e->recent);
		list_push_front(&cache.recent, &e->recent);
		next = TAKE_IT;
	} else if (e && e->asking) {
		next = WAIT;
	} else {
		if (!e)
			e = entry_make(ask, key, len);
		if (e)
			e->asking = true;
		*entry = e;
	}
	pthread_mutex_unlock(&cache.mutex);
	return next;
}

/* Without asking or waiting: false when that would be needed. */
static bool cache_peek(question *ask, const void *key, size_t len, struct answer *answer)
{
	pthread_mutex_lock(&cache.mutex);
	const struct entry *e = cache.table.bucket ? entry_find(ask, key, len) : NULL;
	bool known = e && e->answered && (e->asking || now_ns() < e->until);
	if (known)
		*answer = e->answer;
	pthread_mutex_unlock(&cache.mutex);
	return known;
}

/* The caller's answer, or the older one. */
static void cache_fill(struct entry *e, bool known, struct answer *answer)
{
	if (!known)
		answer->count = -1;
	if (!e)
		return;
	pthread_mutex_lock(&cache.mutex);
	e->asking = false;
	if (known || !e->answered)
		e->answer = *answer;
	else
		*answer = e->answer;
	e->answered = true;
	e->until = now_ns() + (known && answer->count >= 0 ? KEEP_NS : RETRY_NS);
	pthread_mutex_unlock(&cache.mutex);
}

struct asking {
	question *ask;
	const void *key;
	size_t len;
	struct answer *answer;
	bool known;
};

static void ask_run(void *arg)
{
	struct asking *a = arg;

	a->known = a->ask(a->key, a->len, a->answer);
}

static void lookup(question *ask, const void *key, size_t len, struct answer *answer)
{
	struct asking a = {.ask = ask, .key = key, .len = len, .answer = answer};
	uint64_t deadline = now_ns() + LOOKUP_WAIT;
	struct entry *entry = NULL;
	enum next next;

	answer->count = -1;
	while ((next = cache_look(ask, key, len, answer, &entry)) == WAIT && now_ns() < deadline)
		fiber_sleep(LOOKUP_POLL);
	if (next != ASK)
		return;
	offload(ask_run, &a);
	cache_fill(entry, a.known, answer);
}

/* ------------------------------------------------------------------------------------------------
 * Groups of a user
 */

/* More than there is room for: the first ones. */
static bool groups_ask(const void *key, size_t len, struct answer *answer)
{
	struct passwd user, *found = NULL;
	char *room = malloc(PASSWD_BYTES);
	uint32_t uid;

	(void)len;
	memcpy(&uid, key, sizeof(uid));
	answer->count = -1;
	int rc = room ? getpwuid_r(uid, &user, room, PASSWD_BYTES, &found) : ENOMEM;
	if (!rc && found) {
		int n = (int)FS_GROUPS_MAX;
		answer->count = getgrouplist(user.pw_name, user.pw_gid, answer->group, &n) < 0 ? (int)FS_GROUPS_MAX : n;
	}
	free(room);
	return !rc || rc == ENOENT || rc == ESRCH;
}

void groups_of(uint32_t uid, struct fs_cred *to)
{
	struct answer answer;

	lookup(groups_ask, &uid, sizeof(uid), &answer);
	if (answer.count < 0)
		return;
	to->group_count = (uint32_t)answer.count;
	for (int i = 0; i < answer.count; i++)
		to->groups[i] = answer.group[i];
}

/* ------------------------------------------------------------------------------------------------
 * Names and numbers of users and groups
 */

#define NOT_THERE(rc) (!(rc) || (rc) == ENOENT || (rc) == ESRCH)

/* A user or group, by NAME or, where that is NULL, by *ID. *RC: what the service says; a name that is too long is none.
 */
static bool account_find(bool group, const char *name, uint32_t *id, char to[LOOKUP_NAME_MAX], int *rc)
{
	struct passwd user, *user_found = NULL;
	struct group members, *group_found = NULL;
	char *room = malloc(PASSWD_BYTES);

	*rc = ENOMEM;
	if (room && group)
		*rc = name ? getgrnam_r(name, &members, room, PASSWD_BYTES, &group_found)
			   : getgrgid_r(*id, &members, room, PASSWD_BYTES, &group_found);
	else if (room)
		*rc = name ? getpwnam_r(name, &user, room, PASSWD_BYTES, &user_found)
			   : getpwuid_r(*id, &user, room, PASSWD_BYTES, &user_found);
	const char *is = user_found ? user.pw_name : group_found ? members.gr_name : "";
	bool found = !*rc && *is && strlen(is) < LOOKUP_NAME_MAX;
	if (found) {
		*id = user_found ? user.pw_uid : members.gr_gid;
		strcpy(to, is);
	}
	free(room);
	return found;
}

/* The key of both: whether it is a group (1 byte), then the number, or the name. */
static bool name_ask(const void *key, size_t len, struct answer *answer)
{
	uint32_t id;
	int rc;

	(void)len;
	memcpy(&id, (const uint8_t *)key + 1, sizeof(id));
	answer->count = account_find(*(const uint8_t *)key, NULL, &id, answer->name, &rc) ? 1 : -1;
	return NOT_THERE(rc);
}

static bool number_ask(const void *key, size_t len, struct answer *answer)
{
	char name[LOOKUP_NAME_MAX], is[LOOKUP_NAME_MAX];
	uint32_t id = 0;
	int rc;

	memcpy(name, (const uint8_t *)key + 1, len - 1);
	name[len - 1] = 0;
	answer->count = account_find(*(const uint8_t *)key, name, &id, is, &rc) ? 1 : -1;
	answer->number = id;
	return NOT_THERE(rc);
}

int name_of(uint32_t id, bool group, bool wait, char to[LOOKUP_NAME_MAX])
{
	uint8_t key[1 + sizeof(id)] = {group};
	struct answer answer;

	memcpy(key + 1, &id, sizeof(id));
	if (wait)
		lookup(name_ask, key, sizeof(key), &answer);
	else if (!cache_peek(name_ask, key, sizeof(key), &answer))
		return -EAGAIN;
	if (answer.count < 0)
		return -ENOENT;
	strcpy(to, answer.name);
	return 0;
}

bool number_of(const char *name, bool group, uint32_t *id)
{
	uint8_t key[1 + LOOKUP_NAME_MAX] = {group};
	size_t len = strlen(name);
	struct answer answer;

	memcpy(key + 1, name, len);
	lookup(number_ask, key, 1 + len, &answer);
	if (answer.count >= 0)
		*id = answer.number;
	return answer.count >= 0;
}

/* ------------------------------------------------------------------------------------------------
 * Names of hosts and netgroups
 */

static bool addresses_ask(const void *key, size_t len, struct answer *answer)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	char name[CLIENTS_TEXT_MAX];

	memcpy(name, key, len);
	name[len] = 0;
	answer->count = -1;
	int rc = getaddrinfo(name, NULL, &hints, &list);
	if (rc)
		return rc == EAI_NONAME;
	answer->count = 0;
	for (const struct addrinfo *a = list; a && answer->count < (int)ADDRESSES_MAX; a = a->ai_next)
		rpc_address_mapped(a->ai_addr, &answer->address[answer->count++]);
	freeaddrinfo(list);
	return true;
}

static bool answer_has(const struct answer *answer, const struct in6_addr *address)
{
	for (int i = 0; i < answer->count; i++)
		if (!memcmp(&answer->address[i], address, sizeof(*address)))
			return true;
	return false;
}

/* The name of an address counts only where it leads back to the address: who owns a network may name it as he likes. */
static int host_name(const struct in6_addr *address, char *name, size_t room)
{
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = *address};
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	bool mapped = IN6_IS_ADDR_V4MAPPED(address);
	struct answer back;

	memcpy(&v4.sin_addr, &address->s6_addr[12], 4);
	int rc = getnameinfo(mapped ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, mapped ? sizeof(v4) : sizeof(v6),
		name, (socklen_t)room, NULL, 0, NI_NAMEREQD);
	if (rc)
		return rc;
	if (!addresses_ask(name, strlen(name), &back))
		return EAI_AGAIN;
	return answer_has(&back, address) ? 0 : EAI_NONAME;
}

static pthread_mutex_t netgroup_lock = PTHREAD_MUTEX_INITIALIZER; /* innetgr() is for one thread at a time */

/* The key: an address, then the netgroup's name. A member's count is 1. */
static bool member_ask(const void *key, size_t len, struct answer *answer)
{
	struct in6_addr address;
	char group[CLIENTS_TEXT_MAX], name[CLIENTS_TEXT_MAX];

	memcpy(&address, key, sizeof(address));
	memcpy(group, (const uint8_t *)key + sizeof(address), len - sizeof(address));
	group[len - sizeof(address)] = 0;
	answer->count = -1;
	int rc = host_name(&address, name, sizeof(name));
	if (rc)
		return rc == EAI_NONAME;
	pthread_mutex_lock(&netgroup_lock);
	bool member = innetgr(group, name, NULL, NULL);
	char *dot = strchr(name, '.');
	if (!member && dot) {
		*dot = 0;
		member = innetgr(group, name, NULL, NULL);
	}
	pthread_mutex_unlock(&netgroup_lock);
	answer->count = member ? 1 : -1;
	return true;
}

bool clients_named(const struct config_clients *c, const struct in6_addr *address)
{
	struct answer answer;

	if (c->kind == CLIENTS_HOST) {
		lookup(addresses_ask, c->text, strlen(c->text), &answer);
		return answer_has(&answer, address);
	}
	uint8_t key[sizeof(*address) + CLIENTS_TEXT_MAX];
	size_t len = strlen(c->text + 1); /* behind the @ */
	memcpy(key, address, sizeof(*address));
	memcpy(key + sizeof(*address), c->text + 1, len);
	lookup(member_ask, key, sizeof(*address) + len, &answer);
	return answer.count > 0;
}
