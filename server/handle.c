/*
 * handle: file handles that tell a file for ever, and that nobody else can make.
 *
 * A handle names the export it was given out for, the file system, and the inode with its generation, so it needs no
 * table in the server and survives restarts and renames. A client that could make handles up would walk around
 * directories it may not search and around the export it may mount, so a handle ends in a MAC: SipHash-2-4 (Aumasson
 * and Bernstein, 2012), 64 bits, which is made for short messages like this one and costs some 30 ns.
 *
 * The key belongs to the file system: it is made from the UUID in its superblock, 122 random bits that no protocol ever
 * shows to a client (the fsid that clients see is another number). An administrator of the server can read the UUID and
 * could make handles; he may read the drives too.
 *
 * Error policy: what has not our form, or not our MAC, was not made here: the gate answers NFS3ERR_BADHANDLE. What was
 * made here and no longer leads to anything (export gone, file deleted) is NFS3ERR_STALE. Where the file system that a
 * handle names is not served the MAC cannot be checked; then it is stale too.
 *
 * Nothing here waits or keeps state.
 */
#include "server/nfs_internal.h"

static inline uint64_t rotl(uint64_t x, unsigned n)
{
	return x << n | x >> (64 - n);
}

static inline void sip_round(uint64_t v[4])
{
	v[0] += v[1];
	v[1] = rotl(v[1], 13) ^ v[0];
	v[0] = rotl(v[0], 32);
	v[2] += v[3];
	v[3] = rotl(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = rotl(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = rotl(v[1], 17) ^ v[2];
	v[2] = rotl(v[2], 32);
}

uint64_t siphash24(const uint64_t key[2], const void *data, size_t bytes)
{
	const uint8_t *p = data;
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull, key[0] ^ 0x6c7967656e657261ull,
		key[1] ^ 0x7465646279746573ull};
	uint64_t word;
	size_t left = bytes;

	for (; left >= 8; left -= 8, p += 8) {
		memcpy(&word, p, 8);
		word = le64toh(word);
		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	word = (uint64_t)bytes << 56;
	for (size_t i = 0; i < left; i++)
		word |= (uint64_t)p[i] << (8 * i);
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
	v[2] ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void handle_key_make(const struct uuid *uuid, uint64_t fsid, uint64_t key[2])
{
	static const char use[] = "furrow file handle"; /* so that another key made from the UUID is another key */
	uint8_t text[sizeof(use) + 8 + 1];
	uint64_t seed[2];

	memcpy(seed, uuid->b, sizeof(seed));
	seed[0] = le64toh(seed[0]);
	seed[1] = le64toh(seed[1]);
	memcpy(text, use, sizeof(use));
	for (unsigned i = 0; i < 8; i++)
		text[sizeof(use) + i] = (uint8_t)(fsid >> (8 * i));
	for (uint8_t part = 0; part < 2; part++) {
		text[sizeof(text) - 1] = part;
		key[part] = siphash24(seed, text, sizeof(text));
	}
}

void handle_encode(const struct handle *handle, const uint64_t key[2], uint8_t to[HANDLE_BYTES])
{
	struct handle_format f = {
		.version = HANDLE_VERSION,
		.export_id = le32_put(handle->export_id),
		.fsid = le64_put(handle->fsid),
		.ino = le64_put(handle->id.ino),
		.gen = le32_put(handle->id.gen),
		.snap = le32_put(handle->id.snap),
	};

	f.mac = le64_put(siphash24(key, &f, offsetof(struct handle_format, mac)));
	memcpy(to, &f, sizeof(f));
}

bool handle_parse(const uint8_t *data, uint32_t len, struct handle *handle)
{
	struct handle_format f;

	if (len != sizeof(f))
		return false;
	memcpy(&f, data, sizeof(f));
	if (f.version != HANDLE_VERSION || f.reserved[0] || f.reserved[1] || f.reserved[2])
		return false;
	handle->export_id = le32_get(f.export_id);
	handle->fsid = le64_get(f.fsid);
	handle->id.ino = le64_get(f.ino);
	handle->id.gen = le32_get(f.gen);
	handle->id.snap = le32_get(f.snap);
	return true;
}

bool handle_verify(const uint8_t data[HANDLE_BYTES], const uint64_t key[2])
{
	struct handle_format f;

	memcpy(&f, data, sizeof(f));
	/* one comparison of a register: its time tells nothing about which bits differ */
	return siphash24(key, data, offsetof(struct handle_format, mac)) == le64_get(f.mac);
}
