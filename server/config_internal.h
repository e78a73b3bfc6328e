/*
 * What the readers of the configuration share: config.c has the document, server: and drives:, config_exports.c
 * exports:.
 */
#ifndef FURROW_CONFIG_INTERNAL_H
#define FURROW_CONFIG_INTERNAL_H

#include <yaml.h>

#include "server/server_internal.h"

struct reader {
	const char *file;
	yaml_document_t *document;
	struct config *config;
	struct error *err;
};

/* The value is known to whoever reads the code, people and analyzers: always -EINVAL. */
#define mistake(...) (mistake_set(__VA_ARGS__), -EINVAL)

void mistake_set(struct reader *r, const yaml_node_t *node, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* What a message shows of a value: printable and short, whatever was in the file. */
const char *node_quote(const yaml_node_t *node, char text[48]);
/* The text of a scalar. EXPECTED ends the sentence "expected ...". */
int scalar_get(struct reader *r, const yaml_node_t *node, const char *expected, const char **text);
int string_read(struct reader *r, const yaml_node_t *node, const char *expected, char **out);
int number_read(
	struct reader *r, const yaml_node_t *node, const char *expected, uint64_t min, uint64_t max, uint64_t *out);

struct choice {
	const char *name;
	int value;
};
int choice_read(
	struct reader *r, const yaml_node_t *node, const struct choice *choices, const char *expected, int *out);

/* A list, or a single value that stands for a list of one. Calls FN for each item. */
int list_read(struct reader *r, yaml_node_t *node, const char *expected, bool single,
	int (*fn)(struct reader *r, yaml_node_t *item, void *arg), void *arg);

struct key {
	const char *name;
	int (*read)(struct reader *r, yaml_node_t *value, void *arg);
};
/* A section: each key at most once, and none that KEYS does not have. SEEN, one bit for each of KEYS, may be NULL. */
int section_read(
	struct reader *r, yaml_node_t *node, const char *what, const struct key *keys, void *arg, unsigned *seen_out);

/* Room for one more in an array that grows by doubling. */
void *grow(struct reader *r, void *array, unsigned count, size_t size);
bool address_parse(const char *text, struct in6_addr *out, bool *v4);

int exports_read(struct reader *r, yaml_node_t *node, void *arg);

#endif
