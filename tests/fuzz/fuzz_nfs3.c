/* Arguments of every NFSv3 procedure. */
#include "tests/fuzz/fuzz_codec.h"

#include "xdr/nfs3_test.h"

FUZZ_TYPES(nfs3, "GETATTR3args", "SETATTR3args", "LOOKUP3args", "ACCESS3args", "READLINK3args", "READ3args",
	"WRITE3args", "CREATE3args", "MKDIR3args", "SYMLINK3args", "MKNOD3args", "REMOVE3args", "RMDIR3args",
	"RENAME3args", "LINK3args", "READDIR3args", "READDIRPLUS3args", "FSSTAT3args", "FSINFO3args", "PATHCONF3args",
	"COMMIT3args")
