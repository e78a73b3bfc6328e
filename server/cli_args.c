/*
 * The command line: SUBJECT VERB, options anywhere, "--option value" or "--option=value", "--" before arguments that
 * begin with a dash. Every mistake is one line that says what was expected, and the exit status is 2.
 */
#include "server/cli_internal.h"

#include <string.h>

static void complain(const struct cli *cli, const char *format, va_list args, const char *end)
{
	char text[1024];

	vsnprintf(text, sizeof(text), format, args);
	fflush(stdout);
	if (cli && cli->command)
		fprintf(stderr, "furrow: %s%s%s: %s%s\n", cli->command->subject, cli->command->verb ? " " : "",
			cli->command->verb ? cli->command->verb : "", text, end);
	else
		fprintf(stderr, "furrow: %s%s\n", text, end);
}

int cli_failed(const struct cli *cli, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	complain(cli, format, args, "");
	va_end(args);
	return EXIT_FAILED;
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
	char end[80] = " (furrow help lists the commands)";
	va_list args;

	if (cli->command)
		snprintf(end, sizeof(end), " (see furrow help %s%s%s)", cli->command->subject,
			cli->command->verb ? " " : "", cli->command->verb ? cli->command->verb : "");
	va_start(args, format);
	complain(cli, format, args, end);
	va_end(args);
	return EXIT_USAGE;
}

/* ------------------------------------------------------------------------------------------------
 * Options
 */

struct option {
	const char *name;
	unsigned needs;	    /* OPT_* that the command must have; 0: every command */
	size_t flag;	    /* offset of a bool, or 0 */
	size_t text;	    /* offset of a const char *, or 0 */
	size_t list, count; /* offsets of a list of strings and of its length, or 0 */
};

#define AT(member) offsetof(struct cli, member)

static const struct option options[] = {
	{"--json", OPT_JSON, AT(json), 0, 0, 0},
	{"--yes", OPT_YES, AT(yes), 0, 0, 0},
	{"--force", OPT_FORCE, AT(force), 0, 0, 0},
	{"--quick", OPT_QUICK, AT(quick), 0, 0, 0},
	{"--repair", OPT_REPAIR, AT(repair), 0, 0, 0},
	{"--wait", OPT_WAIT, AT(wait), 0, 0, 0},
	{"--latency", OPT_LATENCY, 0, AT(latency), 0, 0},
	{"--interval", OPT_INTERVAL, 0, AT(interval), 0, 0},
	{"--count", OPT_INTERVAL, 0, AT(count), 0, 0},
	{"--help", 0, AT(help), 0, 0, 0},
	{"--config", 0, 0, AT(config_file), 0, 0},
	{"--control", 0, 0, AT(control), 0, 0},
	{"--level", OPT_LEVEL, 0, AT(level), 0, 0},
	{"--groups", OPT_GROUPS, 0, AT(groups), 0, 0},
	{"--strip", OPT_STRIP, 0, AT(strip), 0, 0},
	{"--size", OPT_SIZE, 0, AT(size), 0, 0},
	{"--spare", OPT_SPARE, 0, 0, AT(spares), AT(spare_count)},
	{"--drives", 0, 0, 0, AT(drives), AT(drive_count)},
};
#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

static const struct option *option_find(const char *arg, size_t length)
{
	if (length == 2 && !strncmp(arg, "-h", 2))
		return option_find("--help", 6);
	if (length == 2 && !strncmp(arg, "-y", 2))
		return option_find("--yes", 5);
	for (size_t i = 0; i < OPTION_COUNT; i++)
		if (strlen(options[i].name) == length && !strncmp(options[i].name, arg, length))
			return &options[i];
	return NULL;
}

/* Sets one option; *VALUE may be the next argument, which is then used up. GIVEN collects what was set, a bit each. */
static int option_set(struct cli *cli, const struct option *option, const char *value, unsigned *given)
{
	char *at = (char *)cli;
	unsigned bit = 1u << (option - options);

	if ((*given & bit) && !option->list)
		return cli_usage(cli, "%s stands twice", option->name);
	*given |= bit;
	if (option->flag) {
		if (value)
			return cli_usage(cli, "%s takes no value", option->name);
		*(bool *)(at + option->flag) = true;
		return EXIT_OK;
	}
	if (!value)
		return cli_usage(cli, "%s needs a value", option->name);
	if (option->text) {
		*(const char **)(void *)(at + option->text) = value;
		return EXIT_OK;
	}
	unsigned *count = (unsigned *)(void *)(at + option->count);
	if (*count == CLI_LIST_MAX)
		return cli_usage(cli, "%s stands more than %d times", option->name, CLI_LIST_MAX);
	((const char **)(void *)(at + option->list))[(*count)++] = value;
	return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Commands
 */

static int command_find(struct cli *cli, unsigned *words)
{
	const char *subject = cli->arg_count > 0 ? cli->args[0] : NULL,
		   *verb = cli->arg_count > 1 ? cli->args[1] : NULL;
	char verbs[400] = "";

	if (!subject) {
		if (cli->help)
			return EXIT_OK;
		return cli_usage(cli, "a command is missing; expected one such as \"furrow status\"");
	}
	for (const struct cli_command *c = cli_commands; c->subject; c++) {
		if (strcmp(c->subject, subject) != 0)
			continue;
		if (!c->verb || (verb && !strcmp(c->verb, verb))) {
			cli->command = c;
			*words = c->verb ? 2 : 1;
			return EXIT_OK;
		}
		snprintf(verbs + strlen(verbs), sizeof(verbs) - strlen(verbs), "%s%s", verbs[0] ? ", " : "", c->verb);
	}
	if (!verbs[0])
		return cli_usage(cli, "unknown command \"%s\"", subject);
	if (!verb && cli->help) {
		*words = 1;
		return EXIT_OK;
	}
	if (!verb)
		return cli_usage(cli, "\"%s\" needs a verb; expected one of: %s", subject, verbs);
	return cli_usage(cli, "unknown command \"%s %s\"; expected one of: %s", subject, verb, verbs);
}

int cli_parse(int argc, char **argv, struct cli *cli)
{
	unsigned given = 0, words = 0;
	bool plain = false;
	int status;

	for (int i = 1; i < argc; i++) {
		json_t *utf8 = json_string(argv[i]);
		if (!utf8)
			return cli_usage(cli, "argument %d is not valid UTF-8", i);
		json_decref(utf8);
	}
	for (int i = 1; i < argc; i++) {
		const char *arg = argv[i];
		if (plain || arg[0] != '-' || !arg[1]) {
			if (cli->arg_count == CLI_LIST_MAX)
				return cli_usage(cli, "more than %d arguments", CLI_LIST_MAX);
			cli->args[cli->arg_count++] = arg;
			continue;
		}
		if (!strcmp(arg, "--")) {
			plain = true;
			continue;
		}
		if (!strcmp(arg, "--version")) {
			cli->args[0] = "version";
			cli->arg_count = 1;
			break;
		}
		const char *equals = strchr(arg, '=');
		const struct option *option = option_find(arg, equals ? (size_t)(equals - arg) : strlen(arg));
		if (!option)
			return cli_usage(cli, "unknown option \"%s\"", arg);
		const char *value = equals ? equals + 1 : NULL;
		if (!option->flag && !value && i + 1 < argc)
			value = argv[++i];
		status = option_set(cli, option, value, &given);
		if (status != EXIT_OK)
			return status;
	}
	status = command_find(cli, &words);
	if (status != EXIT_OK || cli->help)
		return status;

	memmove(cli->args, cli->args + words, (cli->arg_count - words) * sizeof(cli->args[0]));
	cli->arg_count -= words;
	for (size_t i = 0; i < OPTION_COUNT; i++)
		if ((given & (1u << i)) && options[i].needs && !(cli->command->options & options[i].needs))
			return cli_usage(cli, "it has no option %s", options[i].name);
	if (cli->arg_count < cli->command->args_min)
		return cli_usage(cli, "too few arguments; expected %s", cli->command->synopsis);
	if (cli->arg_count > cli->command->args_max)
		return cli_usage(cli, "too many arguments, \"%s\" is the first; expected %s",
			cli->args[cli->command->args_max], cli->command->synopsis[0] ? cli->command->synopsis : "none");
	return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Help
 */

static void help_command(const struct cli_command *c, FILE *out)
{
	fprintf(out, "furrow %s%s%s%s%s\n    %s\n", c->subject, c->verb ? " " : "", c->verb ? c->verb : "",
		c->synopsis[0] ? " " : "", c->synopsis, c->summary);
}

int cli_help(const char *subject, const char *verb, FILE *out)
{
	bool found = false;

	for (const struct cli_command *c = cli_commands; subject && c->subject; c++) {
		if (strcmp(c->subject, subject) != 0 || (verb && c->verb && strcmp(c->verb, verb) != 0))
			continue;
		help_command(c, out);
		found = true;
	}
	if (subject && !found)
		return cli_failed(NULL, "there is no command \"%s%s%s\"", subject, verb ? " " : "", verb ? verb : "");
	if (!subject) {
		fprintf(out, "furrow SUBJECT VERB ... administers the Furrow NAS of this machine.\n\n");
		for (const struct cli_command *c = cli_commands; c->subject; c++) {
			char name[32];
			snprintf(name, sizeof(name), "%s%s%s", c->subject, c->verb ? " " : "", c->verb ? c->verb : "");
			fprintf(out, "  %-15s %s\n", name, c->summary);
		}
		fprintf(out, "\nfurrow help SUBJECT VERB tells a command's arguments.");
	}
	fprintf(out,
		"%sOptions of every command:\n"
		"  --json           the result as JSON (listings and results)\n"
		"  --config FILE    the configuration (" CONFIG_DEFAULT_PATH ")\n"
		"  --control PATH   the server's control socket (" CONTROL_DEFAULT_PATH ")\n"
		"  --drives GLOB    where to look for drives, in place of drives: in the configuration; may be "
		"repeated\n"
		"Sizes are bytes, or in KiB, MiB, GiB, TiB (also K, M, G, T; powers of 1024).\n"
		"Exit status: 0 done, 1 failed or faults found, 2 wrong command line.\n",
		subject ? "\n" : "\n\n");
	return EXIT_OK;
}
