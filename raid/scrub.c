#include <errno.h>
#include "raid/raid_internal.h"
void scrub_stop(struct array *array) { (void)array; }
int array_scrub_start(struct array *array, struct error *err) { (void)array; return error_set(err, -EOPNOTSUPP, "no"); }
void array_scrub_pause(struct array *array, bool pause) { (void)array; (void)pause; }
void array_scrub_stop(struct array *array) { (void)array; }
