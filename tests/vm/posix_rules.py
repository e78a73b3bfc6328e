"""Rules of POSIX (and of Linux) for files, each checked in the directory that is given: prints TAP without a plan.

posix_rules.py DIR   as root; DIR on any file system, though what NFS 4.2 lacks elsewhere (clones) is then skipped.
"""
import ctypes, errno, fcntl, os, stat, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)
FICLONERANGE = 0x4020940D
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
rules = []


def rule(f):
    rules.append(f)
    return f


def fails(error, f, *args, **kw):
    """F must fail with ERROR (or one of them)."""
    try:
        f(*args, **kw)
    except OSError as e:
        assert e.errno in (error if isinstance(error, tuple) else (error,)), errno.errorcode[e.errno]
        return
    raise AssertionError("it succeeded: %s%r" % (f.__name__, args))


def put(name, data=b""):
    with open(name, "wb") as f:
        f.write(data)


def get(name):
    with open(name, "rb") as f:
        return f.read()


def mode(name):
    return os.stat(name, follow_symlinks=False).st_mode & 0o7777


def links(name):
    return os.stat(name).st_nlink


def as_user(uid, gid, groups, f):
    """What F gives in a process of somebody else: None, or the number of the error."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            f()
        except OSError as e:
            code = e.errno
        except BaseException:
            code = 255
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or None


@rule
def rename_over_an_open_file_leaves_it_readable():
    put("a", b"new")
    put("b", b"old")
    with open("b", "rb") as f:
        os.rename("a", "b")
        assert f.read() == b"old" and get("b") == b"new"
        f.seek(0)
        assert f.read() == b"old"
    fails(errno.ENOENT, os.stat, "a")


@rule
def rename_of_an_open_file_keeps_what_is_written():
    with open("a", "wb") as f:
        f.write(b"1")
        f.flush()
        os.rename("a", "b")
        f.write(b"2")
    assert get("b") == b"12"


@rule
def rename_over_links_of_one_file_does_nothing():
    put("a")
    os.link("a", "b")
    os.rename("a", "b")
    assert links("a") == 2 and os.path.samefile("a", "b")


@rule
def rename_of_directories():
    os.makedirs("d/e/f")
    os.mkdir("empty")
    put("d/x")
    fails(errno.EINVAL, os.rename, "d", "d/e/d")
    fails(errno.EINVAL, os.rename, "d", "d/e/f/g")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, "empty", "d")
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rename, "d/e", "d")
    os.rename("d", "empty")
    assert os.path.isdir("empty/e/f") and not os.path.exists("d")
    put("file")
    fails(errno.ENOTDIR, os.rename, "empty", "file")
    fails(errno.EISDIR, os.rename, "file", "empty")
    fails(errno.ENOENT, os.rename, "nothing", "file")
    fails(errno.ENOTDIR, os.rename, "file/x", "y")


@rule
def rename_over_a_directory_that_is_in_use():
    os.mkdir("a")
    os.mkdir("b")
    fd = os.open("b", os.O_RDONLY | os.O_DIRECTORY)
    os.rename("a", "b")
    assert os.listdir("b") == []
    fails((errno.ENOENT, errno.ESTALE), os.open, "x", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd)
    os.close(fd)


@rule
def a_directory_that_moved_has_another_parent():
    os.makedirs("a/d")
    os.mkdir("b")
    os.rename("a/d", "b/d")
    assert os.path.samefile("b/d/..", "b")
    assert links("a") == 2 and links("b") == 3


@rule
def link_counts_of_directories():
    os.mkdir("d")
    assert links("d") == 2
    before = links(".")
    for n in "abc":
        os.mkdir("d/" + n)
    put("d/f")
    assert links("d") == 5 and links(".") == before
    os.rmdir("d/a")
    os.rename("d/b", "b")
    assert links("d") == 3 and links(".") == before + 1
    fails((errno.ENOTEMPTY, errno.EEXIST), os.rmdir, "d")


@rule
def link_counts_of_files():
    put("f", b"x")
    for i in range(20):
        os.link("f", "l%d" % i)
    assert links("f") == 21
    ctime = os.stat("f").st_ctime_ns
    time.sleep(0.01)
    os.unlink("l0")
    assert links("f") == 20 and os.stat("f").st_ctime_ns > ctime
    fails(errno.EEXIST, os.link, "f", "l1")
    os.mkdir("d")
    fails(errno.EPERM, os.link, "d", "d2")
    os.symlink("f", "s")
    os.link("s", "s2", follow_symlinks=False)
    assert os.readlink("s2") == "f" and links("f") == 20


@rule
def sticky_directory():
    os.mkdir("st")
    os.chmod("st", 0o1777)
    put("st/root")
    put("st/root2")
    os.chmod("st/root", 0o666)
    assert as_user(1000, 1000, [], lambda: put("st/mine")) is None
    assert as_user(1000, 1000, [], lambda: os.unlink("st/root")) in (errno.EPERM, errno.EACCES)
    assert as_user(1000, 1000, [], lambda: os.rename("st/root", "st/x")) in (errno.EPERM, errno.EACCES)
    assert as_user(1000, 1000, [], lambda: os.rename("st/mine", "st/root2")) in (errno.EPERM, errno.EACCES)
    assert as_user(1001, 1001, [], lambda: os.unlink("st/mine")) in (errno.EPERM, errno.EACCES)
    assert as_user(1000, 1000, [], lambda: os.unlink("st/mine")) is None
    os.chown("st", 1000, 1000)
    assert as_user(1000, 1000, [], lambda: os.unlink("st/root")) is None


@rule
def setgid_directory():
    os.mkdir("sg")
    os.chown("sg", 0, 77)
    os.chmod("sg", 0o2777)
    os.mkdir("sg/d")
    put("sg/f")
    os.symlink("x", "sg/s")
    assert mode("sg/d") & 0o2000 and not mode("sg/f") & 0o2000
    assert all(os.lstat("sg/" + n).st_gid == 77 for n in "dfs")
    assert as_user(1000, 1000, [], lambda: put("sg/user")) is None
    assert os.stat("sg/user").st_gid == 77


@rule
def setid_bits_are_cleared():
    put("f", b"x")
    os.chown("f", 1000, 1000)
    os.chmod("f", 0o6755)
    assert as_user(1000, 1000, [], lambda: os.chown("f", -1, 1000)) is None
    assert mode("f") == 0o755
    os.chmod("f", 0o6777)
    def write():
        with open("f", "r+b") as f:
            f.write(b"y")
            f.flush()
            os.fsync(f.fileno())
    assert as_user(1001, 1001, [], write) is None
    assert not mode("f") & 0o4000, oct(mode("f"))
    os.chmod("f", 0o6755)
    assert as_user(1000, 1000, [], lambda: os.truncate("f", 5)) is None
    assert not mode("f") & 0o4000, oct(mode("f"))
    # the group is none of its owner's: the bit cannot be set
    put("g")
    os.chown("g", 1000, 55)
    assert as_user(1000, 1000, [], lambda: os.chmod("g", 0o2755)) is None
    assert mode("g") == 0o755, oct(mode("g"))
    assert as_user(1000, 1000, [55], lambda: os.chmod("g", 0o2755)) is None
    assert mode("g") == 0o2755


@rule
def who_may_change_attributes():
    put("f")
    os.chown("f", 1000, 1000)
    assert as_user(1001, 1001, [], lambda: os.chmod("f", 0o777)) == errno.EPERM
    assert as_user(1000, 1000, [], lambda: os.chown("f", 1001, -1)) == errno.EPERM
    assert as_user(1000, 1000, [], lambda: os.chown("f", -1, 55)) == errno.EPERM
    assert as_user(1000, 1000, [55], lambda: os.chown("f", -1, 55)) is None
    os.chmod("f", 0o644)
    assert as_user(1001, 1001, [], lambda: os.utime("f")) in (errno.EACCES, errno.EPERM)
    os.chmod("f", 0o666)
    assert as_user(1001, 1001, [], lambda: os.utime("f")) is None
    assert as_user(1001, 1001, [], lambda: os.utime("f", (1, 1))) == errno.EPERM


@rule
def access_by_owner_group_and_others():
    put("f", b"x")
    os.chown("f", 1000, 2000)
    os.chmod("f", 0o040)
    assert as_user(1000, 2000, [], lambda: get("f")) == errno.EACCES
    assert as_user(1001, 2000, [], lambda: get("f")) is None
    assert as_user(1001, 1001, [2000], lambda: get("f")) is None
    assert as_user(1001, 1001, [], lambda: get("f")) == errno.EACCES
    os.mkdir("d", 0o711)
    os.chmod("d", 0o711)
    put("d/f", b"y")
    os.chmod("d/f", 0o644)
    assert as_user(1001, 1001, [], lambda: get("d/f")) is None
    assert as_user(1001, 1001, [], lambda: os.listdir("d")) == errno.EACCES
    assert as_user(1001, 1001, [], lambda: put("d/g")) == errno.EACCES


@rule
def times_have_nanoseconds():
    put("f")
    for at, mt in ((1, 999999999), (1234567890123456789, 987654321987654321), (0, 4102444800000000001)):
        os.utime("f", ns=(at, mt))
        s = os.stat("f")
        assert (s.st_atime_ns, s.st_mtime_ns) == (at, mt), (s.st_atime_ns, s.st_mtime_ns)
    now = time.time_ns()
    os.utime("f")
    assert abs(os.stat("f").st_mtime_ns - now) < 5e9


@rule
def which_operation_changes_which_time():
    os.mkdir("d")
    put("d/f", b"x")
    def stamps(n):
        s = os.stat(n)
        return s.st_mtime_ns, s.st_ctime_ns
    def changed(name, f):
        before = stamps(name)
        time.sleep(0.01)
        f()
        after = stamps(name)
        return tuple(a > b for a, b in zip(after, before))
    def write():
        fd = os.open("d/f", os.O_WRONLY)
        os.write(fd, b"yy")
        os.fsync(fd)
        os.close(fd)
    assert changed("d", lambda: put("d/g")) == (True, True)
    assert changed("d", lambda: os.unlink("d/g")) == (True, True)
    assert changed("d/f", lambda: os.chmod("d/f", 0o600)) == (False, True)
    assert changed("d/f", write) == (True, True)
    assert changed("d/f", lambda: os.truncate("d/f", 1)) == (True, True)
    assert changed("d/f", lambda: os.link("d/f", "d/l")) == (False, True)
    assert changed("d/f", lambda: os.rename("d/f", "d/f2") or os.rename("d/f2", "d/f"))[0] is False
    assert changed("d", lambda: os.chmod("d/f", 0o644)) == (False, False)
    assert changed("d/f", lambda: get("d/f")) == (False, False)


@rule
def access_times_are_relative():
    put("f", b"x")
    os.utime("f", ns=(1000000000, 1000000000))
    get("f")
    if os.stat("f").st_atime_ns == 1000000000:
        subprocess.run("echo 3 > /proc/sys/vm/drop_caches", shell=True, stderr=subprocess.DEVNULL)
        get("f")
    # older than a day, or than the last change: it is brought up to date at some time, never before the change
    assert os.stat("f").st_mtime_ns == 1000000000
    at = os.stat("f").st_atime_ns
    assert at == 1000000000 or abs(at - time.time_ns()) < 60e9, at


@rule
def sparse_files():
    with open("f", "wb") as f:
        f.seek(1 << 40)
        f.write(b"end")
    assert os.stat("f").st_size == (1 << 40) + 3 and os.stat("f").st_blocks < 2048
    with open("f", "rb") as f:
        f.seek(1 << 33)
        assert f.read(5000) == bytes(5000)
        f.seek((1 << 40) - 2)
        assert f.read() == b"\0\0end"
    os.truncate("f", 10)
    assert get("f") == bytes(10)
    os.truncate("f", 20000)
    assert get("f") == bytes(20000)


@rule
def bytes_behind_the_end_do_not_come_back():
    put("f", b"x" * 10000)
    os.truncate("f", 5000)
    os.truncate("f", 10000)
    assert get("f") == b"x" * 5000 + bytes(5000)


def fallocate(fd, how, off, n):
    if libc.fallocate(fd, how, ctypes.c_long(off), ctypes.c_long(n)):
        raise OSError(ctypes.get_errno(), "fallocate")


@rule
def allocate_and_punch():
    data = os.urandom(65536)
    put("f", data)
    fd = os.open("f", os.O_RDWR)
    fallocate(fd, 3, 5000, 20000)
    want = data[:5000] + bytes(20000) + data[25000:]
    assert get("f") == want and os.fstat(fd).st_size == 65536
    os.fsync(fd)
    fallocate(fd, 0, 60000, 40000)
    assert os.fstat(fd).st_size == 100000 and get("f") == want + bytes(100000 - 65536)
    fallocate(fd, 3, 90000, 500000)
    assert os.fstat(fd).st_size == 100000
    os.close(fd)


@rule
def seek_data_and_hole():
    blocks = 64
    with open("f", "wb") as f:
        for b in (0, 10, 11, 40):
            f.seek(b * 4096)
            f.write(b"d" * 4096)
        f.truncate(blocks * 4096)
        f.flush()
        os.fsync(f.fileno())
    fd = os.open("f", os.O_RDONLY)
    at, seen = 0, []
    while True:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            assert e.errno == errno.ENXIO
            break
        hole = os.lseek(fd, data, os.SEEK_HOLE)
        assert hole > data
        seen.append((data // 4096, hole // 4096))
        at = hole
    covered = {b for a, z in seen for b in range(a, z)}
    assert {0, 10, 11, 40} <= covered, seen
    assert len(covered) < 40, seen  # it tells holes at all
    assert os.lseek(fd, 0, os.SEEK_HOLE) <= 10 * 4096
    fails(errno.ENXIO, os.lseek, fd, blocks * 4096, os.SEEK_DATA)
    os.close(fd)


@rule
def clone_ranges():
    data = os.urandom(16 * 4096)
    put("f", data)
    put("g", bytes(20 * 4096))
    a, b = os.open("f", os.O_RDWR), os.open("g", os.O_RDWR)
    def clone(to, fro, off, n, to_off):
        arg = fro.to_bytes(8, "little", signed=True) + b"".join(x.to_bytes(8, "little") for x in (off, n, to_off))
        fcntl.ioctl(to, FICLONERANGE, arg)
    try:
        clone(b, a, 4096, 8 * 4096, 2 * 4096)
    except OSError as e:
        os.close(a)
        os.close(b)
        if e.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV):
            return "no clones here"
        raise
    want = bytes(8192) + data[4096:9 * 4096] + bytes(10 * 4096)
    assert get("g") == want
    os.pwrite(a, b"changed", 4096)
    os.fsync(a)
    assert get("g") == want
    os.pwrite(b, b"other", 3 * 4096)
    os.fsync(b)
    assert get("f")[4096:4103] == b"changed" and get("f")[8192:] == data[8192:]
    fails(errno.EINVAL, clone, b, a, 1, 4096, 0)
    fails(errno.EINVAL, clone, b, a, 0, 32 * 4096, 0)
    clone(a, a, 0, 4096, 8 * 4096)
    assert get("f")[8 * 4096:8 * 4096 + 4096] == data[:4096]
    os.unlink("f")
    assert get("g")[4 * 4096:10 * 4096] == want[4 * 4096:10 * 4096]
    os.close(a)
    os.close(b)


@rule
def extended_attributes():
    put("f")
    try:
        os.setxattr("f", "user.a", b"1")
    except OSError as e:
        if e.errno == errno.EOPNOTSUPP:
            return "no user attributes here"
        raise
    fails(errno.EEXIST, os.setxattr, "f", "user.a", b"2", os.XATTR_CREATE)
    fails(errno.ENODATA, os.setxattr, "f", "user.b", b"2", os.XATTR_REPLACE)
    big = os.urandom(60000)
    os.setxattr("f", "user.big", big)
    os.setxattr("f", "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr("f", "user.big") == big and os.getxattr("f", "user.a") == b"3"
    for i in range(50):
        os.setxattr("f", "user.n%02d" % i, b"%d" % i)
    assert len([n for n in os.listxattr("f") if n.startswith("user.")]) == 52
    os.rename("f", "g")
    os.link("g", "h")
    assert os.getxattr("h", "user.n49") == b"49"
    os.removexattr("g", "user.big")
    fails(errno.ENODATA, os.getxattr, "h", "user.big")
    fails(errno.ENODATA, os.removexattr, "h", "user.big")
    os.mkdir("d")
    os.setxattr("d", "user.d", b"dir")
    assert os.getxattr("d", "user.d") == b"dir"
    os.chmod("g", 0o600)
    assert as_user(1001, 1001, [], lambda: os.getxattr("g", "user.a")) == errno.EACCES


@rule
def orphans_live_while_they_are_open():
    data = os.urandom(300000)
    put("f", data)
    fd = os.open("f", os.O_RDWR)
    os.unlink("f")
    assert not [n for n in os.listdir(".") if not n.startswith(".nfs")]
    assert os.pread(fd, 300000, 0) == data and os.fstat(fd).st_size == 300000
    os.pwrite(fd, b"more", 300000)
    os.ftruncate(fd, 400000)
    assert os.pread(fd, 10, 300000) == b"more" + bytes(6)
    os.close(fd)
    assert os.listdir(".") == []


@rule
def a_directory_that_is_gone():
    os.mkdir("d")
    fd = os.open("d", os.O_RDONLY)
    os.rmdir("d")
    fails((errno.ENOENT, errno.ESTALE), os.mkdir, "x", dir_fd=fd)
    os.close(fd)


@rule
def names():
    put("x" * 255)
    fails(errno.ENAMETOOLONG, put, "x" * 256)
    for n in (b"\xff\xfe", b"a\nb", b" ", b"...", "größe".encode(), b"A", b"a"):
        put(n, n)
    assert get(b"A") == b"A" and get(b"a") == b"a"
    assert set(os.listdir(b".")) == {b"\xff\xfe", b"a\nb", b" ", b"...", "größe".encode(), b"A", b"a", b"x" * 255}
    fails(errno.EEXIST, os.mkdir, "A")
    fails(errno.EEXIST, os.symlink, "x", "A")
    fails(errno.ENOTDIR, os.stat, "A/x")
    fails(errno.ENOTDIR, os.rmdir, "A")
    fails(errno.ENOENT, os.mkdir, "no/x")
    os.symlink("loop2", "loop")
    os.symlink("loop", "loop2")
    fails(errno.ELOOP, os.stat, "loop")
    os.symlink("y" * 4000, "long")
    assert os.readlink("long") == "y" * 4000


@rule
def opening():
    fails(errno.EEXIST, lambda: [os.open("f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644) for _ in range(2)])
    fails(errno.EISDIR, os.open, ".", os.O_WRONLY)
    put("g", b"12345")
    os.close(os.open("g", os.O_WRONLY | os.O_TRUNC))
    assert get("g") == b""
    a, b = os.open("g", os.O_WRONLY | os.O_APPEND), os.open("g", os.O_WRONLY | os.O_APPEND)
    for i in range(10):
        os.write(a, b"a")
        os.write(b, b"b")
    assert get("g") == b"ab" * 10
    # made without any permission, and written to by who made it
    fd = os.open("none", os.O_CREAT | os.O_RDWR, 0)
    os.write(fd, b"x")
    os.close(fd)
    assert mode("none") == 0 and os.stat("none").st_size == 1


@rule
def the_umask_counts():
    old = os.umask(0o027)
    try:
        put("f")
        os.mkdir("d")
    finally:
        os.umask(old)
    assert mode("f") == 0o640 and mode("d") == 0o750


@rule
def a_listing_is_whole_while_names_come_and_go():
    for i in range(500):
        put("keep%03d" % i)
        put("go%03d" % i)
    seen = set()
    with os.scandir(".") as d:
        for n, e in enumerate(d):
            assert e.name not in seen, e.name
            seen.add(e.name)
            if n < 500:
                os.unlink("go%03d" % n)
    assert all("keep%03d" % i in seen for i in range(500))
    assert len(os.listdir(".")) == 500


def main():
    top = os.path.abspath(sys.argv[1])
    failed = 0
    os.umask(0o022)
    for n, f in enumerate(rules, 1):
        where = os.path.join(top, f.__name__)
        os.mkdir(where)
        os.chmod(where, 0o777)
        os.chdir(where)
        try:
            skip = f()
            print("ok %d - %s%s" % (n, f.__name__.replace("_", " "), " # SKIP " + skip if skip else ""))
        except Exception as e:
            import traceback
            failed += 1
            line = traceback.extract_tb(e.__traceback__)
            mine = [l for l in line if l.filename == __file__][1:2] or line[-1:]
            print("not ok %d - %s: line %d: %s: %s %s" % (n, f.__name__.replace("_", " "), mine[0].lineno, mine[0].line, type(e).__name__, e))
        os.chdir(top)
        subprocess.run(["rm", "-rf", where])
        if os.path.exists(where):
            failed += 1
            print("not ok %d - what %s left cannot be removed" % (n, f.__name__))
    return failed > 0


sys.exit(main())
