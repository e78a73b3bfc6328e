/* Arguments of MOUNT, and the lists that it answers with, which clients decode. */
#include "tests/fuzz/fuzz_codec.h"

#include "xdr/mount3_test.h"

FUZZ_TYPES(mount3, "dirpath", "mountres3", "mountlist", "exportlist")
