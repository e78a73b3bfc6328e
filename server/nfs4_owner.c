/*
 * nfs4_owner: owners and groups of files between the wire, where they are text (RFC 8881 5.9), and the numbers that a
 * file system keeps.
 *
 * A number in decimal is always taken, and given unless the configuration wants names: Linux sends and takes numbers
 * with AUTH_SYS, no name has to be looked up, and the two sides need not agree on names. A name is "user@domain", of
 * our domain alone: of another one's users we know nothing. It is looked up by lookup.c, whose answers are kept; what
 * has no name is given as its number.
 *
 * Names are given where a reply is encoded, which may be under the lock of a directory: so nothing waits there. Whoever
 * encodes asks for the names before (nfs4_owners_ask()), or finds out by nfs4_owners_known() that it has to.
 *
 * Error policy: a name that nobody here has, and one of another domain, is NFS4ERR_BADOWNER.
 */
#include <ctype.h>
#include <errno.h>
#include <unistd.h>

#include "server/nfs4_internal.h"

#define NUMBER_BYTES 16u /* length and ten digits */
#define NAME_MAX_BYTES 192u

static _Atomic bool give_names;
static _Atomic(const char *) our_domain;

void nfs4_owners_set(const struct config *config)
{
	static char own[256];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	if (!own[0]) {
		char host[sizeof(own)] = "";
		const char *dot = gethostname(host, sizeof(host) - 1) ? NULL : strchr(host, '.');
		snprintf(own, sizeof(own), "%s", dot && dot[1] ? dot + 1 : "localdomain");
	}
	pthread_mutex_unlock(&lock);
	/* configurations are kept until the end */
	atomic_store(&our_domain, config->owner_domain ? config->owner_domain : own);
	atomic_store(&give_names, config->owner_names);
}

uint32_t nfs4_owner_bytes(void)
{
	return atomic_load_explicit(&give_names, memory_order_relaxed) ? 4 + NAME_MAX_BYTES : NUMBER_BYTES;
}

/* ------------------------------------------------------------------------------------------------
 * Giving
 */

/* Of the two, those that are wanted. False: one of them would have to be asked for, and WAIT is false. */
static bool owners_find(const struct nfs4_bits *wanted, const struct fs_attr *attr, bool wait)
{
	char name[LOOKUP_NAME_MAX];

	if (!atomic_load_explicit(&give_names, memory_order_relaxed))
		return true;
	if (nfs4_bit(wanted, FATTR4_OWNER) && name_of(attr->uid, false, wait, name) == -EAGAIN)
		return false;
	return !nfs4_bit(wanted, FATTR4_OWNER_GROUP) || name_of(attr->gid, true, wait, name) != -EAGAIN;
}

bool nfs4_owners_known(const struct nfs4_bits *wanted, const struct fs_attr *attr)
{
	return owners_find(wanted, attr, false);
}

void nfs4_owners_ask(const struct nfs4_bits *wanted, const struct fs_attr *attr)
{
	(void)owners_find(wanted, attr, true);
}

bool nfs4_put_owner(struct xdr_out *out, uint32_t id, bool group)
{
	char text[LOOKUP_NAME_MAX + 300], name[LOOKUP_NAME_MAX];
	int len = 0;

	if (atomic_load_explicit(&give_names, memory_order_relaxed) && !name_of(id, group, false, name))
		len = snprintf(text, sizeof(text), "%s@%s", name, atomic_load(&our_domain));
	if (!len || (unsigned)len > NAME_MAX_BYTES)
		len = snprintf(text, sizeof(text), "%u", id);
	return xdr_put_opaque(out, text, (uint32_t)len);
}

/* ------------------------------------------------------------------------------------------------
 * Taking
 */

static bool number_get(const struct xdr_opaque *text, uint32_t *id)
{
	uint64_t value = 0;

	if (!text->len || text->len > 10)
		return false;
	for (uint32_t i = 0; i < text->len; i++) {
		if (!isdigit(text->data[i]))
			return false;
		value = value * 10 + (uint64_t)(text->data[i] - '0');
	}
	*id = (uint32_t)value;
	return value <= UINT32_MAX;
}

nfsstat4 nfs4_get_owner(const struct xdr_opaque *text, bool group, uint32_t *id)
{
	const uint8_t *at = text->len ? memrchr(text->data, '@', text->len) : NULL;
	const char *domain = atomic_load(&our_domain);
	char name[LOOKUP_NAME_MAX];

	if (!at)
		return number_get(text, id) ? NFS4_OK : NFS4ERR_BADOWNER;
	size_t len = (size_t)(at - text->data), rest = text->len - len - 1;
	if (!len || len >= sizeof(name) || memchr(text->data, 0, len) || !domain || rest != strlen(domain) ||
		strncasecmp((const char *)at + 1, domain, rest))
		return NFS4ERR_BADOWNER;
	memcpy(name, text->data, len);
	name[len] = 0;
	return number_of(name, group, id) ? NFS4_OK : NFS4ERR_BADOWNER;
}
