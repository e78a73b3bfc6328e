#!/usr/bin/python3
"""client_hand.py WHAT ...: what one process on a client does in nfs3_pair, nfs4_pair and nfs4_work.

count flock|fcntl FILE ROUNDS     adds 1 to the number in FILE that many times, under a lock
hold FILE WORD LOG [dirty]        locks FILE, writes WORD in it and says "locked"; then, as often as LOG.go appears, writes WORD
                                  again with fsync and says what came of it: "written", or the error's name. dirty: what it
                                  wrote first is left to the page cache
take FILE SECONDS                 tries once a second to lock FILE, and says after how many seconds it had the lock
load DIR NAME ROUNDS              holds a lock of DIR/NAME meanwhile: makes files, renames them, notes each one in it
rival FILE                        tries to lock what a load has locked, until that says "end": it must not get it before
sqlite FILE NAME ROWS             inserts that many rows, each in a transaction
rows FILE                         says whether the file is sound, how many rows there are, and of how many names
"""
import errno
import fcntl
import os
import sqlite3
import sys
import time


def lock_now(f):
    try:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as e:
        if e.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False


def count(kind, name, rounds):
    lock = {"flock": fcntl.flock, "fcntl": fcntl.lockf}[kind]
    f = os.open(name, os.O_RDWR)
    for _ in range(int(rounds)):
        lock(f, fcntl.LOCK_EX)
        n = int(os.pread(f, 32, 0) or b"0")
        os.pwrite(f, b"%d" % (n + 1), 0)
        lock(f, fcntl.LOCK_UN)
    os.close(f)


def hold(name, word, log, *how):
    f = os.open(name, os.O_RDWR | os.O_CREAT)

    def tell(what):
        with open(log, "a") as to:
            to.write("%s\n" % what)

    fcntl.lockf(f, fcntl.LOCK_EX)
    os.pwrite(f, word.encode(), 0)
    if "dirty" not in how:
        os.fsync(f)
    tell("locked")
    while True:
        while not os.path.exists(log + ".go"):
            time.sleep(0.1)
        os.unlink(log + ".go")
        try:
            os.pwrite(f, word.encode(), 0)
            os.fsync(f)
            tell("written")
        except OSError as e:
            tell(errno.errorcode[e.errno])


def take(name, seconds):
    start = time.monotonic()
    f = os.open(name, os.O_RDWR)
    while not lock_now(f):
        if time.monotonic() - start > float(seconds):
            sys.exit("no lock within %s s" % seconds)
        time.sleep(1)
    print("%.0f" % (time.monotonic() - start))


def load(at, name, rounds):
    f = open("%s/%s" % (at, name), "w+")
    fcntl.lockf(f, fcntl.LOCK_EX)
    for n in range(int(rounds)):
        temporary, last = "%s/%s.new" % (at, name), "%s/%s.%d" % (at, name, n)
        with open(temporary, "w") as g:
            g.write("x" * 10000)
        os.rename(temporary, last)
        f.write("%d\n" % n)
        f.flush()
        os.fsync(f.fileno())
    f.seek(0)
    assert f.read().split() == [str(n) for n in range(int(rounds))]
    assert sum(os.path.getsize("%s/%s.%d" % (at, name, n)) for n in range(int(rounds))) == 10000 * int(rounds)
    f.write("end\n")
    f.flush()
    os.fsync(f.fileno())


def rival(name):
    while not os.path.exists(name):
        time.sleep(0.5)
    f = os.open(name, os.O_RDWR)
    time.sleep(2)
    while True:
        if lock_now(f):
            text = os.pread(f, 1 << 20, 0)
            if text.endswith(b"end\n"):
                return
            sys.exit("it has the lock after %d lines" % text.count(b"\n"))
        time.sleep(0.2)


def sqlite(name, who, rows):
    db = sqlite3.connect(name, timeout=600, isolation_level=None)
    db.execute("create table if not exists t(who text, n int)")
    for n in range(int(rows)):
        db.execute("begin immediate")
        db.execute("insert into t values(?, ?)", (who, n))
        db.execute("commit")


def rows(name):
    db = sqlite3.connect(name)
    print(*db.execute("pragma integrity_check").fetchone(), *db.execute("select count(*), count(distinct who) from t").fetchone())


globals()[sys.argv[1]](*sys.argv[2:])
