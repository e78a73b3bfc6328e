/*
 * handle_format: what an NFSv3 file handle holds on the wire (40 of the 64 bytes that RFC 1813 allows).
 *
 * A client treats it as opaque and gives it back unchanged, perhaps years later and after restarts of the server, so
 * this is a format like those on the drives: little-endian, versioned, never changed in place.
 */
#ifndef FURROW_HANDLE_FORMAT_H
#define FURROW_HANDLE_FORMAT_H

#include "core/endian.h"

#define HANDLE_VERSION 1

struct handle_format {
	uint8_t version;
	uint8_t reserved[3]; /* zero */
	le32 export_id;
	le64 fsid;
	le64 ino;
	le32 gen;
	le32 snap;
	le64 mac; /* SipHash-2-4 of all that stands before it */
};
#define HANDLE_BYTES 40u
_Static_assert(sizeof(struct handle_format) == HANDLE_BYTES, "file handle");
_Static_assert(HANDLE_BYTES <= 64, "NFS3_FHSIZE");

#endif
