/*
 * Scanning: what is on the drives, without claiming or changing anything. One fiber goes through the
 * paths in turn. A drive that cannot be opened or read is an entry like any other, with the reason.
 *
 * The same drive under two names (a character device and its block device, two links to one file) is
 * listed once, by the name that comes first; NVMe character devices before others. Patterns that match too much are
 * refused (-E2BIG) before anything is opened.
 */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "raid/raid_internal.h"

static int info_fill(const char *path, struct drive_info *info, struct drive **drive_out)
{
	struct error err = {0};
	struct drive *drive;
	memset(info, 0, sizeof(*info));
	snprintf(info->path, sizeof(info->path), "%s", path);
	*drive_out = NULL;
	int r = drive_open(path, false, &drive, &err);
	if (r) {
		info->content = DRIVE_UNREADABLE;
		info->kind = DRIVE_FILE;
		/* the whole sentence without the name that it begins with */
		size_t length = strlen(path);
		bool named = strncmp(err.text, path, length) == 0 && strncmp(err.text + length, ": ", 2) == 0;
		snprintf(info->holds, sizeof(info->holds), "%s", named ? err.text + length + 2 : strerror(-r));
		return r;
	}
	*drive_out = drive;
	info->kind = drive->kind;
	memcpy(info->model, drive->model, sizeof(info->model));
	memcpy(info->serial, drive->serial, sizeof(info->serial));
	info->bytes = drive->bytes;
	info->lba_bytes = drive->lba_bytes;
	info->transfer_max = drive->transfer_max;
	info->volatile_cache = drive->volatile_cache;

	struct super_found *found = malloc(sizeof(*found));
	if (!found)
		return -ENOMEM;
	enum super_verdict verdict;
	char why[160];
	r = super_read(drive, found, &verdict, why, sizeof(why));
	if (r) {
		info->content = DRIVE_UNREADABLE;
		snprintf(info->holds, sizeof(info->holds), "%s", strerror(-r));
	} else if (verdict == SUPER_VALID) {
		const struct raid_config *c = &found->config;
		bool spare = c->member[found->slot].state == FORMAT_MEMBER_SPARE;
		info->content = DRIVE_MEMBER;
		info->array = c->uuid;
		info->member = found->member;
		info->slot = found->slot;
		info->events = c->events;
		memcpy(info->array_name, c->name, sizeof(info->array_name));
		if (spare)
			snprintf(info->holds, sizeof(info->holds), "spare of array %s", c->name);
		else
			snprintf(info->holds, sizeof(info->holds), "member %u of array %s", found->slot, c->name);
	} else if (verdict != SUPER_NONE) {
		info->content = verdict == SUPER_NEWER ? DRIVE_FOREIGN : DRIVE_DAMAGED;
		snprintf(info->holds, sizeof(info->holds), "%.79s", why);
	} else {
		bool foreign;
		r = drive_content_foreign(drive, info->holds, sizeof(info->holds), &foreign);
		if (!r && pool_spare_read(drive, &info->member) == 0) {
			info->content = DRIVE_POOL;
			snprintf(info->holds, sizeof(info->holds), "spare of the shared pool");
		} else if (r) {
			info->content = DRIVE_UNREADABLE;
			snprintf(info->holds, sizeof(info->holds), "%s", strerror(-r));
		} else {
			info->content = foreign ? DRIVE_FOREIGN : DRIVE_EMPTY;
		}
	}
	free(found);
	return 0;
}

struct glob_call {
	const char *const *patterns;
	unsigned count;
	char **paths;
	size_t n;
	int result;
};

/*
 * Patterns may come over the control socket, and must not keep the server busy for long: only so many directory
 * entries are looked at and only so many paths opened. glob() has no argument for its callbacks, so that count is
 * of the helper thread that runs it.
 */
#define ENTRIES_MOST 100000u
#define PATHS_MOST 4096u
static __thread unsigned entries_seen;

static struct dirent *entry_read(void *dir)
{
	return entries_seen < ENTRIES_MOST && ++entries_seen ? readdir(dir) : NULL;
}

static void dir_close(void *dir)
{
	closedir(dir);
}

static void *dir_open(const char *path)
{
	return opendir(path);
}

static int paths_add(struct glob_call *call, const char *prefix, const char *path)
{
	if (call->n == PATHS_MOST)
		return -E2BIG;
	char **grown = realloc(call->paths, (call->n + 1) * sizeof(char *));
	if (!grown)
		return -ENOMEM;
	call->paths = grown;
	size_t size = strlen(prefix) + strlen(path) + 1;
	char *copy = malloc(size);
	if (!copy)
		return -ENOMEM;
	snprintf(copy, size, "%s%s", prefix, path);
	call->paths[call->n++] = copy;
	return 0;
}

static void glob_blocking(void *arg)
{
	struct glob_call *call = arg;
	entries_seen = 0;
	for (unsigned i = 0; i < call->count && !call->result; i++) {
		const char *pattern = call->patterns[i], *prefix = "";
		if (strncmp(pattern, "null:", 5) == 0) {
			call->result = paths_add(call, "", pattern);
			continue;
		}
		if (strncmp(pattern, "fault:", 6) == 0) {
			prefix = "fault:";
			pattern += 6;
		}
		glob_t found = {
			.gl_opendir = dir_open,
			.gl_readdir = entry_read,
			.gl_closedir = dir_close,
			.gl_lstat = lstat,
			.gl_stat = stat,
		};
		int r = glob(pattern, GLOB_ALTDIRFUNC, NULL, &found);
		if (r == GLOB_NOSPACE)
			call->result = -ENOMEM;
		if (entries_seen == ENTRIES_MOST)
			call->result = -E2BIG;
		if (r)
			continue;
		for (size_t j = 0; j < found.gl_pathc && !call->result; j++)
			call->result = paths_add(call, prefix, found.gl_pathv[j]);
		globfree(&found);
	}
}

int raid_scan(const char *const *patterns, unsigned count, struct raid_scan *scan, struct error *err)
{
	struct glob_call call = {.patterns = patterns, .count = count};
	int r = 0;
	scan->count = 0;
	scan->drive = NULL;
	offload(glob_blocking, &call);
	struct drive_id {
		dev_t dev;
		ino_t ino;
	} *ids = calloc(call.n + 1, sizeof(*ids));
	scan->drive = calloc(call.n + 1, sizeof(*scan->drive));
	if (call.result == -E2BIG) {
		r = error_set(err, -E2BIG,
			"scanning drives: the patterns match more than %u paths, or walk through more than %u; name "
			"fewer",
			PATHS_MOST, ENTRIES_MOST);
		raid_scan_free(scan);
		goto out;
	}
	if (call.result || !ids || !scan->drive) {
		r = error_set(err, -ENOMEM, "scanning drives: out of memory");
		raid_scan_free(scan);
		goto out;
	}
	for (size_t i = 0; i < call.n; i++) {
		struct drive *drive;
		struct drive_info *info = &scan->drive[scan->count];
		(void)info_fill(call.paths[i], info, &drive);
		struct drive_id id = {0};
		if (drive) {
			id.dev = drive->id_dev;
			id.ino = drive->id_ino;
			drive_close(drive);
		}
		unsigned same = scan->count;
		for (unsigned j = 0; j < scan->count; j++) {
			bool twice = id.dev ? ids[j].dev == id.dev && ids[j].ino == id.ino
					    : strcmp(scan->drive[j].path, info->path) == 0;
			if (twice) {
				same = j;
				break;
			}
		}
		if (same == scan->count) {
			ids[scan->count++] = id;
		} else if (info->kind == DRIVE_NVME && scan->drive[same].kind != DRIVE_NVME) {
			scan->drive[same] = *info;
		}
	}
out:
	for (size_t i = 0; i < call.n; i++)
		free(call.paths[i]);
	free(call.paths);
	free(ids);
	return r;
}

void raid_scan_free(struct raid_scan *scan)
{
	free(scan->drive);
	scan->drive = NULL;
	scan->count = 0;
}

/* ---- examine ---- */

static void text_time(uint64_t ns, char *out, size_t size)
{
	time_t t = (time_t)(ns / NSEC_PER_SEC);
	struct tm tm;
	if (!gmtime_r(&t, &tm) || strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
		snprintf(out, size, "-");
}

static const char *format_state_name(uint8_t state)
{
	static const char *const names[] = {"none", "active", "failed", "missing", "rebuilding", "spare"};
	return state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

static void examine_print(const struct super_found *f, FILE *out)
{
	const struct raid_config *c = &f->config;
	char text[40];
	uuid_format(&c->uuid, text);
	fprintf(out, "  array      %s %s\n", c->name, text);
	fprintf(out, "  format     version %u, superblocks of %u bytes\n", c->version, super_bytes(c));
	fprintf(out, "  level      %u, %u members, %u slots\n", c->level, c->members, c->slots);
	uuid_format(&f->member, text);
	fprintf(out, "  this drive slot %u %s, %llu bytes\n", f->slot, text, (unsigned long long)f->drive_bytes);
	text_time(c->created, text, sizeof(text));
	fprintf(out, "  created    %s\n", text);
	text_time(c->updated, text, sizeof(text));
	fprintf(out, "  updated    %s, event %llu, %s\n", text, (unsigned long long)c->events,
		c->clean ? "clean" : "in use");
	fprintf(out, "  log zone   %llu bytes at %llu of each member, %u copies over %u members in %u group%s\n",
		(unsigned long long)c->log_bytes, (unsigned long long)c->log_offset, c->log_copies, c->log_members,
		c->log_groups, c->log_groups == 1 ? "" : "s");
	fprintf(out, "  data zone  %llu bytes at %llu of each member\n", (unsigned long long)c->data_bytes,
		(unsigned long long)c->data_offset);
	for (unsigned i = 0; i < c->geometries; i++) {
		const struct geometry *g = &c->geometry[i];
		fprintf(out, "  geometry   epoch %u: stripes %llu-%llu, %u x %u+%u, strip %u bytes, at %llu\n",
			g->epoch, (unsigned long long)g->first_stripe,
			(unsigned long long)(g->first_stripe + g->stripes - 1), g->groups, g->k, g->m, g->strip_bytes,
			(unsigned long long)g->member_offset);
	}
	for (unsigned i = 0; i < c->slots; i++) {
		uuid_format(&c->member[i].uuid, text);
		fprintf(out, "  slot %-5u %s %s, from event %llu\n", i, text, format_state_name(c->member[i].state),
			(unsigned long long)c->member[i].events);
	}
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume_config *v = &c->volume[i];
		if (!v->name[0])
			continue;
		uuid_format(&v->uuid, text);
		fprintf(out, "  volume     %s %s: stripes %llu-%llu, log chunks %llu-%llu\n", v->name, text,
			(unsigned long long)v->first_stripe, (unsigned long long)(v->first_stripe + v->stripes - 1),
			(unsigned long long)v->log_first, (unsigned long long)(v->log_first + v->log_chunks - 1));
	}
}

int drive_examine(const char *path, FILE *out, struct error *err)
{
	struct drive *drive;
	int r = drive_open(path, false, &drive, err);
	if (r)
		return r;
	struct super_found *found = malloc(sizeof(*found));
	if (!found) {
		drive_close(drive);
		return error_set(err, -ENOMEM, "%s: out of memory", path);
	}
	fprintf(out, "%s: %s%s%s, %llu bytes\n", path, drive->model[0] ? drive->model : "drive",
		drive->serial[0] ? " " : "", drive->serial, (unsigned long long)drive->bytes);
	unsigned seen = 0;
	struct buf *buf = buf_alloc(SUPER_BYTES_MOST);
	for (unsigned copy = 0; copy < 2 && drive->bytes >= 2 * SUPER_ALIGN + SUPER_BYTES_MOST; copy++) {
		uint64_t offset = super_offset(drive->bytes, copy);
		char why[160];
		fprintf(out, " superblock copy %u at %llu: ", copy, (unsigned long long)offset);
		int e = drive_io(drive, DRIVE_OP_READ, offset, buf, SUPER_BYTES_MOST, false);
		if (e) {
			fprintf(out, "%s\n", strerror(-e));
			continue;
		}
		enum super_verdict v = super_decode(buf->data, drive->bytes, found, why, sizeof(why));
		if (v == SUPER_VALID) {
			fprintf(out, "valid\n");
			examine_print(found, out);
			seen++;
		} else {
			fprintf(out, "%s\n", v == SUPER_NONE ? "none" : why);
		}
	}
	if (!seen) {
		char holds[80];
		bool foreign;
		int e = drive_content_foreign(drive, holds, sizeof(holds), &foreign);
		fprintf(out, " holds: %s\n", e ? strerror(-e) : foreign ? holds : "nothing known");
	}
	buf_put(buf);
	free(found);
	drive_close(drive);
	return 0;
}
