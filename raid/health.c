#include "raid/raid_internal.h"
void health_tick(struct array *array) { (void)array; }
