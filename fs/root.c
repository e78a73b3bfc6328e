/*
 * The root directory by its number: it exists as long as the file system, so whoever has no handle yet begins here. Its
 * generation is drawn when the file system is made, as every inode's is.
 */
#include "fs/inode_internal.h"

static int root_pass(struct tx *tx, void *arg)
{
	struct inode *inode;
	int r = inode_load(tx, FS_ROOT_INO, &inode);

	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	attr_fill(&inode->attr, inode->ino, arg);
	return 0;
}

int fs_root(struct fs *fs, struct fs_attr *attr)
{
	return files_view(fs, root_pass, attr);
}
