/* Arguments of every procedure of the status monitor. */
#include "tests/fuzz/fuzz_codec.h"

#include "xdr/sm_inter_test.h"

FUZZ_TYPES(sm_inter, "sm_name", "sm_mon", "mon_id", "my_id", "stat_chge")
