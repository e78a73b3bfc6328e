/* Arguments of every NLM procedure, and the results that clients answer GRANTED with. */
#include "tests/fuzz/fuzz_codec.h"

#include "xdr/nlm4_test.h"

FUZZ_TYPES(nlm4, "nlm4_testargs", "nlm4_lockargs", "nlm4_cancargs", "nlm4_unlockargs", "nlm4_testres", "nlm4_res",
	"nlm4_shareargs", "nlm4_notify")
