/*
 * stable: what protocols must know again after a restart, as state records of the file system it concerns
 * (fs_state_put() and its like, fs.h). The kinds, and what their names and data are:
 */
#ifndef FURROW_STABLE_H
#define FURROW_STABLE_H

#include "fs/fs.h"

enum stable_kind {
	STABLE_NSM_STATE = 1,	 /* "state": our NSM state number, le32 (nsm.c) */
	STABLE_NSM_HOST = 2,	 /* a client that may hold NLM locks here: its name; data: how to reach it (nsm.c) */
	STABLE_NFS4_CLIENT = 16, /* a client that may hold NFSv4 state here */
	STABLE_NFS4_SERVER = 17, /* of the server itself: "lease", the longest that a client may know, le32 seconds */
};

#endif
