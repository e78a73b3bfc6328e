/*
 * The configuration file. What is refused is refused with one printable line that names the file; what is taken is
 * complete.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#include "server/server_internal.h"

static void taken(const struct config *c)
{
	FUZZ_CHECK(c->control && c->file);
	for (unsigned i = 0; i < c->listen_count; i++)
		FUZZ_CHECK(c->listen[i]);
	for (unsigned i = 0; i < c->drive_count; i++)
		FUZZ_CHECK(c->drives[i]);
	for (unsigned i = 0; i < c->export_count; i++) {
		const struct config_export *e = &c->exports[i];
		FUZZ_CHECK(e->path && e->path[0] == '/' && config_filesystem_valid(e->filesystem));
		for (unsigned a = 0; a < e->allow_count; a++)
			for (unsigned n = 0; n < e->allow[a].client_count; n++)
				FUZZ_CHECK(e->allow[a].clients[n].prefix <= 128);
	}
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	static int fd = -1;
	static char path[64];
	struct config *config = NULL;
	struct error err = {0};

	if (fd < 0) {
		fd = memfd_create("furrow.yaml", MFD_CLOEXEC);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	}
	FUZZ_CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes) && pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
	int rc = config_load(path, &config, &err);
	if (!rc) {
		FUZZ_CHECK(config);
		taken(config);
		config_free(config);
		return;
	}
	FUZZ_CHECK(rc < 0 && rc == err.code && !strncmp(err.text, path, strlen(path)));
	for (const char *p = err.text; *p; p++)
		FUZZ_CHECK((unsigned char)*p >= 32 && *p != 127);
}

static void fuzz_seeds(void)
{
	static const char all[] =
		"server:\n  listen: [\"10.0.0.1\", \"::1\"]\n  nfs_port: 2049\n  rdma_port: off\n  cores: 2\n"
		"  memory: 2GiB\n  control: /run/c.sock\n  metrics: 127.0.0.1:9750\n  hook: /bin/h\n"
		"drives: [\"/dev/ng*n1\"]\nexports:\n  - path: /data\n    filesystem: a0/data\n    allow:\n"
		"      - {clients: 10.0.0.0/8, access: rw, squash: root, anonuid: 99, anongid: 99, sec: [sys, none]}\n"
		"      - {clients: [\"@group\", host, \"fe80::/10\"], access: ro, squash: all, groups: server}\n";
	static const char least[] = "exports:\n- {path: /a, filesystem: b/c, allow: [{clients: '*', access: ro}]}\n";
	static const char alias[] = "server: &a {listen: &b [\"::\"]}\ndrives: *b\nexports: []\n# comment\n---\n";

	fuzz_seed("all", all, sizeof(all) - 1);
	fuzz_seed("least", least, sizeof(least) - 1);
	fuzz_seed("alias", alias, sizeof(alias) - 1);
}
