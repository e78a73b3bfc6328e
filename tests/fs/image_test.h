/* The drives of a test's file system as they were, to be put back. The drives are not open. */
#ifndef TESTS_FS_IMAGE_TEST_H
#define TESTS_FS_IMAGE_TEST_H

#include <fcntl.h>
#include <sys/stat.h>

#include "tests/fs/files_test.h"

static uint8_t *image[TEST_DRIVES_MAX];
static size_t image_size;

static int image_take(struct files_test *t)
{
	for (unsigned i = 0; i < t->count; i++) {
		int fd = open(files_test_file(t->path[i]), O_RDONLY | O_CLOEXEC);
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0)
			return -EIO;
		image_size = (size_t)st.st_size;
		image[i] = malloc(image_size);
		if (pread(fd, image[i], image_size, 0) != (ssize_t)image_size)
			return -EIO;
		close(fd);
	}
	return 0;
}

static int image_put(struct files_test *t)
{
	static const uint8_t zero[BLOCK_BYTES];
	int r = 0;

	for (unsigned i = 0; i < t->count && r == 0; i++) {
		int fd = open(files_test_file(t->path[i]), O_RDWR | O_TRUNC | O_CLOEXEC);

		r = fd < 0 || ftruncate(fd, (off_t)image_size) < 0 ? -EIO : 0;
		for (size_t at = 0; at < image_size && r == 0; at += BLOCK_BYTES)
			if (memcmp(image[i] + at, zero, BLOCK_BYTES) != 0 &&
				pwrite(fd, image[i] + at, BLOCK_BYTES, (off_t)at) != BLOCK_BYTES)
				r = -EIO;
		close(fd);
	}
	return r;
}

#endif
