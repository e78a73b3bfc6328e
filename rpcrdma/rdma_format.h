/*
 * What RPC-over-RDMA version 1 puts on the wire: the transport header (RFC 8166 section 4) and the private
 * data of the connection manager (RFC 8797).
 *
 * The header is decoded by hand and not by the generated codec, since its lists are what a peer can harm the
 * most with: every count and every length is checked here, before anything is allocated, posted or answered. The result
 * holds each chunk as a run of segments in one array, whatever order they came in.
 */
#ifndef FURROW_RDMA_FORMAT_H
#define FURROW_RDMA_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RDMA_RPC_VERSION 1u

/* Bytes of a message that fits the Send and Receive buffers of both sides. */
#define RDMA_INLINE_MIN 1024u /* every peer takes this much (RFC 8166 3.3.3) */
#define RDMA_INLINE_MAX 4096u

enum rdma_proc { RDMA_MSG, RDMA_NOMSG, RDMA_MSGP, RDMA_DONE, RDMA_ERROR };
enum rdma_errcode { RDMA_ERR_VERS = 1, RDMA_ERR_CHUNK = 2 };

/* The fixed part: xid, version, credits, procedure; the three empty lists behind it take 12 bytes more. */
#define RDMA_HEADER_FIXED 16u
#define RDMA_HEADER_MIN 28u
#define RDMA_READ_SEGMENT_BYTES 24u /* with "one more follows" and the position */
#define RDMA_SEGMENT_BYTES 16u

/* As many segments as a message of RDMA_INLINE_MAX can name; more chunks than an RPC of ours can use. */
#define RDMA_SEGMENTS_MAX 256u
#define RDMA_CHUNKS_MAX 16u
/* No chunk is longer: what is beyond the longest call is refused later, this keeps sums from wrapping. */
#define RDMA_CHUNK_BYTES_MAX (1u << 30)

struct rdma_segment {
	uint32_t handle, length;
	uint64_t offset;
};
struct rdma_chunk {
	uint32_t position; /* of a Read chunk */
	uint32_t length;   /* sum of its segments */
	uint16_t first, count;
};

/* A decoded header. Read chunks are sorted by position. */
struct rdma_header {
	uint32_t xid, credits, proc;
	uint32_t bytes; /* of the header: the RPC message of RDMA_MSG starts there */
	uint8_t read_count, write_count;
	bool has_reply;
	uint16_t segment_count;
	struct rdma_chunk read[RDMA_CHUNKS_MAX], write[RDMA_CHUNKS_MAX], reply;
	struct rdma_segment segment[RDMA_SEGMENTS_MAX];
};

enum rdma_verdict {
	RDMA_HEADER_OK,
	RDMA_HEADER_SILENT,  /* to be dropped without an answer: RDMA_DONE, and an RDMA_ERROR, which nobody asked for */
	RDMA_HEADER_VERSION, /* answer ERR_VERS; xid is set */
	RDMA_HEADER_CHUNK,   /* answer ERR_CHUNK; xid is set */
	RDMA_HEADER_BROKEN,  /* not even an xid: close */
};
enum rdma_verdict rdma_header_decode(struct rdma_header *h, const uint8_t *data, uint32_t bytes);

/* Bytes of the header that answers CALL with its Write list and, when with_reply, its Reply chunk. */
uint32_t rdma_header_reply_bytes(const struct rdma_header *call, bool with_reply);
/*
 * Writes that header; returns its bytes, 0 when ROOM is too small. WRITTEN tells how much of each Write chunk was
 * filled, REPLY_WRITTEN how much of the Reply chunk (used with RDMA_NOMSG only; with RDMA_MSG no Reply chunk is
 * returned).
 */
uint32_t rdma_header_encode_reply(uint8_t *to, uint32_t room, const struct rdma_header *call, uint32_t credits,
	const uint32_t *written, bool with_reply, uint32_t reply_written);
/* The header of a message without chunks; returns its bytes, RDMA_HEADER_MIN. */
uint32_t rdma_header_encode_inline(uint8_t *to, uint32_t xid, uint32_t credits);
/* An RDMA_ERROR message; returns its bytes (at most 28). */
uint32_t rdma_header_encode_error(uint8_t *to, uint32_t xid, uint32_t credits, enum rdma_errcode code);

/* ------------------------------------------------------------------------------------------------
 * Private data: magic, version, flags, send size, receive size; sizes in KiB minus one
 */

#define RDMA_PRIVATE_MAGIC 0xf6ab0e18u
#define RDMA_PRIVATE_BYTES 8u
#define RDMA_PRIVATE_INVALIDATE 1u /* remote invalidation is understood */

struct rdma_private {
	uint32_t send_bytes, receive_bytes; /* of the peer's buffers */
	bool invalidate;
};
/* Looks for the magic anywhere (transports pad and prefix); without it the defaults of RFC 8166: 1024 bytes, no
 * invalidation. */
void rdma_private_decode(struct rdma_private *p, const uint8_t *data, size_t bytes);
void rdma_private_encode(uint8_t to[RDMA_PRIVATE_BYTES], const struct rdma_private *p);

#endif
