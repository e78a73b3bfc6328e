/*
 * Log batches are packed where that saves blocks: what many transactions say is much alike (the same directory, the
 * same times, keys one after the other), and each block of the log is written M+1 times. The bytes behind the header
 * become one raw deflate stream (RFC 1951), made and read by isa-l. A batch that fits one block stays as it is, so
 * who writes alone pays nothing.
 *
 * One packer for each log, for its batches are taken one at a time. Nothing here waits. What replay reads has its
 * checksum verified before; a stream that makes no sense all the same is refused, and never written beyond its room.
 */
#include <stdlib.h>
#include <string.h>

#include <isa-l/igzip_lib.h>

#include "fs/fs_internal.h"

#define ROOM (LOG_BATCH_BLOCKS * BLOCK_BYTES)

struct log_packer {
	struct isal_zstream stream;
	uint8_t level_buf[ISAL_DEF_LVL1_DEFAULT];
	uint8_t plain[ROOM], packed[ROOM];
};

struct log_packer *log_packer_new(void)
{
	return malloc(sizeof(struct log_packer));
}

void log_packer_free(struct log_packer *p)
{
	free(p);
}

uint32_t log_pack(struct log_packer *p, const struct slice *v, unsigned n, uint32_t from, uint32_t bytes, uint32_t most)
{
	struct isal_zstream *z = &p->stream;

	slices_copy_out(v, n, from, p->plain, bytes);
	isal_deflate_stateless_init(z);
	z->level = 1;
	z->level_buf = p->level_buf;
	z->level_buf_size = sizeof(p->level_buf);
	z->gzip_flag = IGZIP_DEFLATE;
	z->end_of_stream = 1;
	z->flush = NO_FLUSH;
	z->next_in = p->plain;
	z->avail_in = bytes;
	z->next_out = p->packed;
	z->avail_out = most;
	if (isal_deflate_stateless(z) != COMP_OK || z->total_out > most)
		return 0;
	slices_copy_in(v, n, from, p->packed, z->total_out);
	return z->total_out;
}

const uint8_t *log_unpack(
	struct log_packer *p, const struct slice *v, unsigned n, uint32_t from, uint32_t packed, uint32_t bytes)
{
	struct inflate_state *s;
	bool good;

	if (bytes > ROOM || packed > ROOM)
		return NULL;
	if (!packed) {
		slices_copy_out(v, n, from, p->plain, bytes);
		return p->plain;
	}
	s = malloc(sizeof(*s));
	if (!s)
		return NULL;
	slices_copy_out(v, n, from, p->packed, packed);
	isal_inflate_init(s);
	s->crc_flag = ISAL_DEFLATE;
	s->next_in = p->packed;
	s->avail_in = packed;
	s->next_out = p->plain;
	s->avail_out = bytes;
	good = isal_inflate_stateless(s) == ISAL_DECOMP_OK && s->total_out == bytes;
	free(s);
	return good ? p->plain : NULL;
}
