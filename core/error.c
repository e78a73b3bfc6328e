/* A failure and its sentence. The sentence is cut at the size of struct error rather than lost. */
#include "core/core_internal.h"

#include <string.h>
#include <unistd.h>

int error_set(struct error *err, int code, const char *format, ...)
{
	if (!err)
		return code;
	va_list args;
	va_start(args, format);
	vsnprintf(err->text, sizeof(err->text), format, args);
	va_end(args);
	err->code = code;
	return code;
}

int error_prefix(struct error *err, const char *format, ...)
{
	if (!err)
		return 0;
	char text[sizeof(err->text)] = "";
	va_list args;
	va_start(args, format);
	int n = vsnprintf(text, sizeof(text) - 2, format, args);
	va_end(args);
	if (n < 0)
		return err->code;
	size_t len = strlen(text), rest = sizeof(text) - len - 3;
	memcpy(text + len, ": ", 2);
	len += 2;
	size_t old = strnlen(err->text, rest);
	memcpy(text + len, err->text, old);
	text[len + old] = 0;
	memcpy(err->text, text, sizeof(text));
	return err->code;
}

void core_panic(const char *what, ...)
{
	char line[512];
	va_list args;
	va_start(args, what);
	int n = vsnprintf(line, sizeof(line) - 1, what, args);
	va_end(args);
	size_t len = n < 0 ? 0 : (size_t)n < sizeof(line) - 1 ? (size_t)n : sizeof(line) - 2;
	line[len] = '\n';
	if (write(STDERR_FILENO, line, len + 1) < 0)
		abort();
	abort();
}
