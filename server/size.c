/*
 * Sizes as people write them. Units are powers of 1024: "64KiB", "64K" and "65536" are the same. "KB" is refused,
 * because half of its readers take it for 1000. The arithmetic is in integers, so that "1.5TiB" is exact and an
 * overflow is seen.
 */
#include "server/server_internal.h"

#include <ctype.h>
#include <errno.h>

static const char unit_letters[] = "KMGTPE";

int size_parse(const char *text, uint64_t *bytes)
{
	const char *p = text;
	unsigned __int128 whole = 0, fraction = 0, scale = 1;

	if (!isdigit((unsigned char)*p))
		return -EINVAL;
	for (; isdigit((unsigned char)*p); p++) {
		whole = whole * 10 + (unsigned)(*p - '0');
		if (whole > UINT64_MAX)
			return -ERANGE;
	}
	if (*p == '.') {
		if (!isdigit((unsigned char)*++p))
			return -EINVAL;
		for (; isdigit((unsigned char)*p); p++) {
			if (scale > 100000000000000ull)
				return -EINVAL; /* nobody writes that many digits */
			fraction = fraction * 10 + (unsigned)(*p - '0');
			scale *= 10;
		}
	}
	if (*p == ' ')
		p++;

	unsigned shift = 0;
	const char *unit = *p ? strchr(unit_letters, toupper((unsigned char)*p)) : NULL;
	if (unit) {
		shift = 10 * (unsigned)(unit - unit_letters + 1);
		p++;
		if (p[0] == 'i' && p[1] == 'B')
			p += 2;
	} else if (*p == 'B') {
		p++;
	}
	if (*p)
		return -EINVAL;
	if (scale > 1 && shift == 0)
		return -EINVAL; /* there are no parts of a byte */

	whole = (whole << shift) + (fraction << shift) / scale;
	if (whole > UINT64_MAX)
		return -ERANGE;
	*bytes = (uint64_t)whole;
	return 0;
}

void size_format(uint64_t bytes, char text[16])
{
	unsigned unit;
	uint64_t tenths;

	if (bytes < 1024) {
		snprintf(text, 16, "%u B", (unsigned)bytes);
		return;
	}
	/* Tenths of the unit, rounded; 1023.96 KiB would show as 1024.0 KiB, and is one MiB instead. */
	for (unit = 1;; unit++) {
		tenths = (uint64_t)(((unsigned __int128)bytes * 10 + (1ull << (10 * unit - 1))) >> (10 * unit));
		if (tenths < 10240 || unit == sizeof(unit_letters) - 1)
			break;
	}
	unsigned shown = (unsigned)(tenths % 1000000);
	if (shown % 10)
		snprintf(text, 16, "%u.%u %ciB", shown / 10, shown % 10, unit_letters[unit - 1]);
	else
		snprintf(text, 16, "%u %ciB", shown / 10, unit_letters[unit - 1]);
}
