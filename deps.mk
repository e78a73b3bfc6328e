# Every package that building, running and testing needs, all of Debian 12. `make deps` installs what is missing.
DEPS_BUILD := gcc make python3 git pkg-config liburing-dev libisal-dev libnvme-dev libxxhash-dev libyaml-dev libjansson-dev libmicrohttpd-dev \
	libtirpc-dev librdmacm-dev libibverbs-dev
DEPS_RUN := ibverbs-providers rdma-core
DEPS_TEST := libcmocka-dev libnfs-utils valgrind clang libclang-rt-14-dev
DEPS_VM := qemu-system-x86 seabios linux-image-amd64 busybox-static cpio kmod xz-utils iproute2 nfs-common rpcbind fio perftest rsync
DEPS_BENCH := nfs-kernel-server mdadm xfsprogs nfs-ganesha nfs-ganesha-vfs strace
DEPS_LINT := clang-format clang-tidy cppcheck
DEPS := $(DEPS_BUILD) $(DEPS_RUN) $(DEPS_TEST) $(DEPS_VM)
