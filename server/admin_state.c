/*
 * Admin commands about what clients hold: those of NFSv4 with their leases, each open, lock and delegation, the locks
 * and shares of NFSv3 clients, and the end of a client that an administrator wants to be rid of.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <inttypes.h>

#include "server/nfs4_state.h"

#define STATES_MAX 20000 /* told of one by one */

static void client_add(void *arg, struct nfs4_client *client)
{
	json_t *list = arg, *object = json_object();
	char id[20];

	snprintf(id, sizeof(id), "%016" PRIx64, nfs4_client_id(client));
	admin_put_string(object, "client", id);
	admin_put_string(object, "address", client->peer);
	admin_put_string(object, "name", client->name);
	admin_put_number(object, "lease_age_seconds", (now_ns() - atomic_load(&client->renewed)) / NSEC_PER_SEC);
	admin_put(object, "expired", json_boolean(nfs4_client_expired(client)));
	admin_put(object, "callbacks", json_boolean(nfs4_client_can_callback(client)));
	admin_put(object, "reclaimed", json_boolean(atomic_load(&client->reclaim_complete)));
	admin_put_number(object, "states", atomic_load(&client->states));
	json_array_append_new(list, object);
}

struct list_call {
	json_t *states;
	bool whole;
};

static json_t *state_object(uint64_t client, uint64_t fsid, uint64_t ino, const char *kind)
{
	json_t *object = json_object();
	char text[20];

	snprintf(text, sizeof(text), "%016" PRIx64, client);
	admin_put_string(object, "client", text);
	snprintf(text, sizeof(text), "%016" PRIx64, fsid);
	admin_put_string(object, "fsid", text);
	admin_put_number(object, "inode", ino);
	admin_put_string(object, "kind", kind);
	return object;
}

static void state_append(struct list_call *call, json_t *object)
{
	call->whole = json_array_size(call->states) < STATES_MAX;
	if (call->whole)
		json_array_append_new(call->states, object);
	else
		json_decref(object);
}

static const char *access_text(uint32_t access)
{
	static const char *const text[] = {"none", "read", "write", "both"};

	return text[access & 3];
}

static void state_add(void *arg, const struct nfs4_state_info *info)
{
	json_t *object;

	if (info->kind == NFS4_STATE_LOCK)
		return; /* lock_add() tells of the ranges */
	object = state_object(
		info->client, info->fsid, info->ino, info->kind == NFS4_STATE_OPEN ? "open" : "delegation");
	admin_put_string(object, "access", access_text(info->access));
	if (info->kind == NFS4_STATE_OPEN) {
		admin_put_string(object, "deny", access_text(info->deny));
	} else {
		admin_put(object, "recalled", json_boolean(info->recalled));
		admin_put(object, "revoked", json_boolean(info->revoked));
	}
	state_append(arg, object);
}

static void lock_add(void *arg, const struct lock_info *info)
{
	static const char *const kinds[] = {
		[LOCK_STATE_HELD] = "lock", [LOCK_STATE_WAITING] = "lock wanted", [LOCK_STATE_SHARE] = "share"};
	bool nlm = info->owner.kind == LOCK_KIND_NLM;
	char name[160];
	json_t *object;

	if (info->state == LOCK_STATE_SHARE && !nlm)
		return; /* the opens say so */
	object = state_object(info->owner.client, info->key.fsid, info->key.ino, kinds[info->state]);
	admin_put_string(object, "protocol", nlm ? "nlm" : "nfs4");
	if (nlm && nlm_client_text(info->owner.client, name, sizeof(name)))
		admin_put_string(object, "name", name);
	if (info->state == LOCK_STATE_SHARE) {
		admin_put_string(object, "access", access_text(info->access));
		admin_put_string(object, "deny", access_text(info->deny));
	} else {
		admin_put_string(object, "access", info->range.exclusive ? "write" : "read");
		admin_put_number(object, "first", info->range.first);
		if (info->range.last != LOCK_TO_END)
			admin_put_number(object, "last", info->range.last);
	}
	state_append(arg, object);
}

json_t *admin_state_list(struct admin *admin)
{
	struct list_call call = {.whole = true};
	struct nfs4_state_counts counts;
	json_t *result, *clients;

	if (!admin->server) {
		error_set(admin->err, -ENOTCONN, "no server runs here: there are no clients");
		return NULL;
	}
	result = json_object();
	clients = json_array();
	call.states = json_array();
	nfs4_clients_foreach(client_add, clients);
	nfs4_state_foreach(state_add, &call);
	lock_foreach(lock_server_table(), lock_add, &call);
	nfs4_state_counts(&counts);
	admin_put(result, "grace", json_boolean(nfs4_grace_active()));
	admin_put_number(result, "opens", counts.opens);
	admin_put_number(result, "lock_states", counts.locks);
	admin_put_number(result, "delegations", counts.delegations);
	admin_put_number(result, "delegations_given", counts.given);
	admin_put_number(result, "delegations_recalled", counts.recalled);
	admin_put_number(result, "delegations_revoked", counts.revoked);
	admin_put(result, "clients", clients);
	admin_put(result, "states", call.states);
	admin_put(result, "whole", json_boolean(call.whole));
	return result;
}

json_t *admin_state_expel(struct admin *admin)
{
	const char *text = admin_string(admin, "client");
	struct nfs4_client *client;
	char *end = NULL;
	uint64_t id;
	int rc;

	if (!text)
		return NULL;
	id = strtoull(text, &end, 16);
	client = admin->server && *text && !*end ? nfs4_client_find(id) : NULL;
	char name[160];
	if (!client && admin->server && *text && !*end && nlm_client_expel(id, name, sizeof(name))) {
		json_t *gone = json_object();
		admin_put_string(gone, "client", text);
		admin_put_string(gone, "address", name);
		return gone;
	}
	if (!client) {
		error_set(admin->err, -ENOENT, "there is no client \"%.64s\"; `furrow state list` shows them", text);
		return NULL;
	}
	json_t *result = json_object();
	admin_put_string(result, "client", text);
	admin_put_string(result, "address", client->peer);
	log_warning("admin", "client expelled client=%s address=%s", client->name, client->peer);
	rc = nfs4_client_expel(client);
	nfs4_client_put(client);
	if (rc == 0)
		return result;
	json_decref(result);
	error_set(admin->err, rc, "client %s is gone already", text);
	return NULL;
}
