/*
 * The commands about NFSv4 clients and what they hold.
 */
#include "server/cli_internal.h"

#include <inttypes.h>
#include <string.h>

static bool is_true(const json_t *object, const char *key)
{
	return json_is_true(json_object_get(object, key));
}

static void show_clients(const json_t *list)
{
	static const char *const heading[] = {"CLIENT", "ADDRESS", "LEASE", "CALLBACKS", "HOLDS", "NAME"};
	struct table table;

	table_init(&table, 6, 1u << 4, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *c = json_array_get(list, i);
		uint64_t age = json_number(c, "lease_age_seconds");

		table_add(&table, 0, "%s", json_text(c, "client"));
		table_add(&table, 1, "%s", json_text(c, "address"));
		if (is_true(c, "expired"))
			table_add(&table, 2, "expired, silent for %" PRIu64 " s", age);
		else
			table_add(&table, 2, "renewed %" PRIu64 " s ago", age);
		table_add(&table, 3, "%s", is_true(c, "callbacks") ? "yes" : "no");
		table_add(&table, 4, "%" PRIu64, json_number(c, "states"));
		table_add(&table, 5, "%s", json_text(c, "name"));
	}
	table_print(&table, stdout);
}

static void show_state(struct table *table, const json_t *s)
{
	const char *kind = json_text(s, "kind"), *name = json_object_get(s, "name") ? json_text(s, "name") : "";

	table_add(table, 0, "%s", kind);
	table_add(table, 1, "%s", json_text(s, "client"));
	table_add(table, 2, "%" PRIu64, json_number(s, "inode"));
	char by[180] = "";

	if (*name)
		snprintf(by, sizeof(by), ", by %.160s", name);
	if (!strcmp(kind, "open") || !strcmp(kind, "share"))
		table_add(table, 3, "%s, denies %s%s", json_text(s, "access"), json_text(s, "deny"), by);
	else if (!strcmp(kind, "delegation"))
		table_add(table, 3, "%s",
			is_true(s, "revoked")	 ? "revoked"
			: is_true(s, "recalled") ? "being recalled"
						 : json_text(s, "access"));
	else if (json_object_get(s, "last"))
		table_add(table, 3, "%s, bytes %" PRIu64 " to %" PRIu64 "%s", json_text(s, "access"),
			json_number(s, "first"), json_number(s, "last"), by);
	else
		table_add(table, 3, "%s, from byte %" PRIu64 " on%s", json_text(s, "access"), json_number(s, "first"),
			by);
}

int state_list_run(struct cli *cli)
{
	static const char *const heading[] = {"KIND", "CLIENT", "INODE", "WHAT"};
	json_t *result = cli_call(cli, request_make("state.list"), CALL_SERVER);
	struct table table;

	if (!result)
		return EXIT_FAILED;
	const json_t *clients = json_object_get(result, "clients"), *states = json_object_get(result, "states");
	if (cli->json) {
		show_json(result);
	} else if (!json_array_size(clients) && !json_array_size(states)) {
		printf("no NFSv4 clients, no locks\n");
	} else {
		if (is_true(result, "grace"))
			printf("grace: clients of before the restart reclaim what they held\n\n");
		show_clients(clients);
		if (json_array_size(states)) {
			printf("\n");
			table_init(&table, 4, 1u << 2, heading);
			for (size_t i = 0; i < json_array_size(states); i++)
				show_state(&table, json_array_get(states, i));
			table_print(&table, stdout);
		}
		if (!is_true(result, "whole"))
			printf("... and more\n");
	}
	json_decref(result);
	return EXIT_OK;
}

int state_expel_run(struct cli *cli)
{
	json_t *request = request_make("state.expel"), *result;
	char question[300];

	snprintf(question, sizeof(question),
		"All opens and locks of client %.64s will be lost, and its applications get errors. Expel it?",
		cli->args[0]);
	if (!cli_confirm(cli, question)) {
		json_decref(request);
		return EXIT_FAILED;
	}
	request_put(request, "client", cli->args[0]);
	result = cli_call(cli, request, CALL_SERVER);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("client %s (%s) is expelled\n", json_text(result, "client"), json_text(result, "address"));
	json_decref(result);
	return EXIT_OK;
}
