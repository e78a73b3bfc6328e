/*
 * identity: from the credential of a call to the user the file system sees.
 *
 * AUTH_SYS is the client's word for who its user is; an export's rule says how far it is believed (squash). AUTH_NONE
 * says nothing, so where a rule takes it at all the caller is the anonymous user. All numbers are 32 bits without sign,
 * from the wire to the drives: 4294967294 is an ordinary user, and nothing is mapped by name.
 *
 * At most 16 groups arrive with AUTH_SYS (RFC 5531 appendix A), and these are used, unless the rule wants those that
 * this machine knows (lookup.c).
 *
 * Nothing here keeps state, and only identity_groups() waits.
 */
#include <errno.h>

#include "server/nfs_internal.h"

int identity_squash(const struct rpc_cred *from, const struct config_allow *rule, struct fs_cred *to)
{
	to->group_count = 0;
	switch (from->flavor) {
	case RPC_AUTH_NONE:
		if (!rule->sec_none)
			return -EACCES;
		to->uid = rule->anonuid;
		to->gid = rule->anongid;
		return 0;
	case RPC_AUTH_SYS:
		if (!rule->sec_sys)
			return -EACCES;
		break;
	default:
		return -EACCES;
	}

	if (rule->squash == SQUASH_ALL) {
		to->uid = rule->anonuid;
		to->gid = rule->anongid;
		return 0;
	}
	uint32_t groups = from->group_count;
	if (groups > sizeof(from->groups) / sizeof(from->groups[0]))
		groups = sizeof(from->groups) / sizeof(from->groups[0]);
	bool squash = rule->squash == SQUASH_ROOT;
	to->uid = squash && from->uid == 0 ? rule->anonuid : from->uid;
	/* group 0 owns much of a system as well: whoever comes as root or in its group comes without it */
	to->gid = squash && from->gid == 0 ? rule->anongid : from->gid;
	for (uint32_t i = 0; i < groups; i++)
		to->groups[i] = squash && from->groups[i] == 0 ? rule->anongid : from->groups[i];
	to->group_count = groups;
	return 0;
}

void identity_groups(const struct rpc_cred *from, const struct config_allow *rule, struct fs_cred *to)
{
	if (!rule->server_groups || from->flavor != RPC_AUTH_SYS || rule->squash == SQUASH_ALL || to->uid != from->uid)
		return; /* the anonymous user has the groups that squashing left */
	groups_of(to->uid, to);
	for (uint32_t i = 0; i < to->group_count; i++)
		if (rule->squash == SQUASH_ROOT && to->groups[i] == 0)
			to->groups[i] = rule->anongid;
}
