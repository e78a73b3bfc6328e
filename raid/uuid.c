/* UUIDs: random ones (RFC 9562, version 4), and their text. No state. */
#include <errno.h>
#include <sys/random.h>

#include "raid/raid.h"

void uuid_make(struct uuid *uuid)
{
	size_t have = 0;
	while (have < sizeof(uuid->b)) {
		ssize_t n = getrandom(uuid->b + have, sizeof(uuid->b) - have, 0);
		if (n > 0)
			have += (size_t)n;
		else if (n < 0 && errno != EINTR) /* cannot be on a kernel with io_uring; stay unique at least */
			for (; have < sizeof(uuid->b); have++)
				uuid->b[have] = (uint8_t)(hash_u64(wall_ns() + now_ns() * (have + 1)) >> 24);
	}
	uuid->b[6] = (uint8_t)((uuid->b[6] & 0x0f) | 0x40);
	uuid->b[8] = (uint8_t)((uuid->b[8] & 0x3f) | 0x80);
}

void uuid_format(const struct uuid *uuid, char text[37])
{
	static const char hex[] = "0123456789abcdef";
	char *p = text;
	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = hex[uuid->b[i] >> 4];
		*p++ = hex[uuid->b[i] & 15];
	}
	*p = 0;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int uuid_parse(const char *text, struct uuid *uuid)
{
	for (unsigned i = 0; i < 16; i++) {
		if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
			return -EINVAL;
		int high = hex_digit(text[0]);
		int low = high < 0 ? -1 : hex_digit(text[1]);
		if (low < 0)
			return -EINVAL;
		uuid->b[i] = (uint8_t)(high << 4 | low);
		text += 2;
	}
	return *text ? -EINVAL : 0;
}
