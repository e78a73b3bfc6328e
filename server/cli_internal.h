/* Between the cli*.c files of the tool `furrow`. */
#ifndef FURROW_CLI_INTERNAL_H
#define FURROW_CLI_INTERNAL_H

#include "server/server_internal.h"

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define CLI_LIST_MAX 1024

struct cli_command;
struct cli {
	const struct cli_command *command;
	/* options; strings are of argv */
	bool json, yes, force, quick, help, wait, repair;
	const char *config_file, *control, *level, *groups, *strip, *size, *latency, *interval, *count;
	const char *drives[CLI_LIST_MAX], *spares[CLI_LIST_MAX], *args[CLI_LIST_MAX];
	unsigned drive_count, spare_count, arg_count;
	struct config *config; /* of the file, or the default */
};

#define OPT_LEVEL 1u
#define OPT_STRIP 2u
#define OPT_SPARE 4u
#define OPT_FORCE 8u
#define OPT_YES 16u
#define OPT_SIZE 32u
#define OPT_QUICK 64u
#define OPT_JSON 128u
#define OPT_GROUPS 256u
#define OPT_WAIT 512u
#define OPT_LATENCY 1024u
#define OPT_REPAIR 2048u
#define OPT_INTERVAL 4096u

struct cli_command {
	const char *subject, *verb; /* verb NULL: the subject is the whole command */
	const char *synopsis, *summary;
	unsigned options, args_min, args_max;
	int (*run)(struct cli *cli); /* an exit status */
};
extern const struct cli_command cli_commands[]; /* ends with subject NULL */

/* One line on stderr: "furrow: SUBJECT VERB: what is wrong". Return EXIT_FAILED and EXIT_USAGE. */
int cli_failed(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* cli_args.c: fills CLI; EXIT_OK, or EXIT_USAGE after a line on stderr. */
int cli_parse(int argc, char **argv, struct cli *cli);
int cli_help(const char *subject, const char *verb, FILE *out);

/*
 * cli_call.c: runs a request on the server when one answers, or here. NULL after a line on stderr. Takes over REQUEST.
 * With CALL_QUIET a failure is not told.
 */
enum { CALL_HERE = 1, CALL_SERVER = 2, CALL_READ_ONLY = 4, CALL_QUIET = 8 };
json_t *cli_call(struct cli *cli, json_t *request, unsigned flags);
bool cli_server_answers(struct cli *cli);
/* Shows QUESTION and asks; true with --yes. False after a line on stderr. */
bool cli_confirm(const struct cli *cli, const char *question);

/* cli.c */
json_t *request_make(const char *command);
/* Arguments are UTF-8: cli_parse() saw to it. */
void request_put(json_t *request, const char *key, const char *value);

int fs_name_check(const struct cli *cli); /* the first argument; EXIT_USAGE after a line on stderr */

/* cli_snapshot.c */
int fs_dump_run(struct cli *cli);
int snapshot_create_run(struct cli *cli);
int snapshot_list_run(struct cli *cli);
int snapshot_delete_run(struct cli *cli);

/* cli_state.c */
int state_list_run(struct cli *cli);
int state_expel_run(struct cli *cli);

/* cli_traffic.c */
int clients_run(struct cli *cli);
int top_run(struct cli *cli);

/* cli_members.c */
int array_add_run(struct cli *cli);
int array_spare_run(struct cli *cli);
int array_remove_run(struct cli *cli);
int array_replace_run(struct cli *cli);
int array_rebuild_run(struct cli *cli);
int array_scrub_run(struct cli *cli);
int drive_spare_run(struct cli *cli);
int drive_release_run(struct cli *cli);
/* What is going on in ARRAY, and how the last of it ended; nothing when there is nothing to tell. */
void show_array_work(const json_t *array, FILE *out);
/* On a terminal: a bar that replaces itself, until cli_bar_end(). */
void cli_bar(const char *what, uint64_t done, uint64_t total, uint64_t eta_seconds);
void cli_bar_end(void);

/* cli_show.c */
struct table {
	unsigned columns, rows;
	uint32_t right; /* bit per column: aligned to the right */
	char **cell;
};
void table_init(struct table *table, unsigned columns, uint32_t right, const char *const *heading); /* NULL: none */
void table_add(struct table *table, unsigned column, const char *format, ...) __attribute__((format(printf, 3, 4)));
void table_add_bytes(struct table *table, unsigned column, uint64_t bytes);
void table_add_time(struct table *table, unsigned column, uint64_t ns);
void table_print(struct table *table, FILE *out); /* and frees it */
void show_json(const json_t *result);
void show_problems(const json_t *result); /* on stderr */
void show_drives(const json_t *list, FILE *out);
void show_arrays(const json_t *list, FILE *out);
void show_array_members(const json_t *array, FILE *out);
void show_filesystems(const json_t *list, FILE *out);
void show_filesystem_details(const json_t *filesystem, FILE *out);
void show_status(const json_t *status, FILE *out);
/* Of an object: "" or 0 when not there. */
const char *json_text(const json_t *object, const char *key);
uint64_t json_number(const json_t *object, const char *key);

#endif
