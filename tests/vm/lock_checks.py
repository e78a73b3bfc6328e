#!/usr/bin/python3
"""lock_checks.py FILE [COMMAND...]: what byte-range locks have to do between two machines, in the way of the Connectathon
suite's lock tests. The two are this process and another that COMMAND starts (lock_checks.py --serve FILE, elsewhere).

Prints "ok NAME" or "not ok NAME: why" for each check; exit status 1 when one failed.
"""
import errno
import fcntl
import os
import struct
import subprocess
import sys

FLOCK = "hhxxxxqqixxxx"
END = 0  # a length that means "to the end"
FAR = (1 << 63) - 2


class Here:
    """Locks of this process. Answers are words: ok, EAGAIN, EBADF; of test(): free, or who has what."""

    def __init__(self, name, mode=os.O_RDWR):
        self.name, self.fd = name, os.open(name, mode)

    def call(self, command, kind, start, length):
        lock = struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0)
        try:
            return struct.unpack(FLOCK, fcntl.fcntl(self.fd, command, lock))
        except OSError as e:
            return errno.errorcode[e.errno]

    def lock(self, kind, start, length):
        r = self.call(fcntl.F_SETLK, {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}[kind], start, length)
        return r if isinstance(r, str) else "ok"

    def wait(self, kind, start, length):
        r = self.call(fcntl.F_SETLKW, {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK}[kind], start, length)
        return r if isinstance(r, str) else "ok"

    def test(self, kind, start, length):
        r = self.call(fcntl.F_GETLK, {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK}[kind], start, length)
        if isinstance(r, str):
            return r
        if r[0] == fcntl.F_UNLCK:
            return "free"
        return "%s %d %d" % ("r" if r[0] == fcntl.F_RDLCK else "w", r[2], r[3])

    def open(self, mode):
        os.close(self.fd)
        self.fd = os.open(self.name, {"ro": os.O_RDONLY, "wo": os.O_WRONLY, "rw": os.O_RDWR}[mode])
        return "ok"

    def read(self, start, length):
        os.lseek(self.fd, start, os.SEEK_SET)
        return os.read(self.fd, length).hex()

    def write(self, start, text):
        os.lseek(self.fd, start, os.SEEK_SET)
        os.write(self.fd, text.encode())
        return "ok"


class There:
    """The same on the other machine."""

    def __init__(self, command):
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, *words):
        self.p.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.p.stdin.flush()

    def end(self):
        return self.p.stdout.readline().strip()

    def __getattr__(self, name):
        def call(*args):
            self.start(name, *args)
            return self.end()

        return call


def serve(name):
    here = Here(name)
    for line in sys.stdin:
        word, *args = line.split()
        print(getattr(here, word)(*[int(a) if a.isdigit() else a for a in args]), flush=True)


failures = 0


def check(name, *pairs):
    """PAIRS: what was answered, what should have been."""
    global failures
    wrong = ["%r, not %r" % (got, want) for got, want in zip(pairs[::2], pairs[1::2]) if got != want]
    failures += bool(wrong)
    print("not ok %s: %s" % (name, "; ".join(wrong)) if wrong else "ok %s" % name, flush=True)


def checks(a, b):
    check("all is free", a.test("w", 0, 1), "free", a.test("w", 0, END), "free", b.test("w", 1, 1), "free",
          b.test("w", FAR, 1), "free", b.test("w", FAR, END), "free")
    check("the whole file is locked", a.lock("w", 0, END), "ok", b.test("w", 0, 1), "w 0 0", b.test("r", FAR, 1), "w 0 0",
          b.lock("r", 5, 1), "EAGAIN", a.lock("u", 0, END), "ok", b.lock("w", 5, 1), "ok", b.lock("u", 5, 1), "ok")
    check("the first byte", a.lock("w", 0, 1), "ok", b.test("w", 0, END), "w 0 1", b.test("w", 1, END), "free",
          b.lock("w", 1, 1), "ok", b.lock("w", 0, 2), "EAGAIN", a.lock("u", 0, 1), "ok", b.lock("u", 0, END), "ok")
    check("around a byte", a.lock("w", 0, 1), "ok", a.lock("w", 2, END), "ok", b.test("w", 1, 1), "free",
          b.lock("w", 1, 1), "ok", b.test("w", 3, 1), "w 2 0", a.lock("w", 1, 1), "EAGAIN", a.lock("u", 0, END), "ok",
          b.lock("u", 0, END), "ok")
    check("far behind the end", a.lock("w", FAR, 1), "ok", b.lock("w", FAR - 1, 1), "ok", b.lock("w", FAR, 1), "EAGAIN",
          b.lock("w", FAR - 1, 2), "EAGAIN", b.lock("w", FAR + 1, END), "ok", a.lock("u", FAR, 1), "ok",
          b.lock("w", FAR - 1, END), "ok", b.lock("u", 0, END), "ok")
    check("readers share", a.lock("r", 0, 10), "ok", b.lock("r", 5, 10), "ok", b.lock("w", 8, 1), "EAGAIN",
          a.lock("w", 8, 1), "EAGAIN", b.lock("w", 10, 5), "ok", a.lock("r", 10, 1), "EAGAIN", b.lock("u", 0, END), "ok",
          a.lock("w", 0, 10), "ok", a.lock("u", 0, END), "ok")
    check("a lock is split, merged, changed", a.lock("w", 0, 100), "ok", a.lock("u", 40, 20), "ok", b.lock("w", 40, 20), "ok",
          b.test("w", 39, 1), "w 0 40", b.test("w", 60, 1), "w 60 40", b.lock("u", 40, 20), "ok", a.lock("w", 40, 20), "ok",
          b.test("w", 50, 1), "w 0 100", a.lock("r", 10, 10), "ok", b.lock("r", 12, 2), "ok", b.test("r", 9, 1), "w 0 10",
          a.lock("w", 12, 1), "EAGAIN", b.lock("u", 0, END), "ok", a.lock("u", 0, END), "ok")
    check("opened for one thing only", a.open("ro"), "ok", a.lock("r", 0, 1), "ok", a.lock("w", 1, 1), "EBADF",
          a.open("wo"), "ok", a.lock("w", 0, 1), "ok", a.lock("r", 1, 1), "EBADF", a.open("rw"), "ok")
    check("a close gives all back", a.lock("w", 0, 10), "ok", b.test("w", 0, 10), "w 0 10", a.open("rw"), "ok",
          b.test("w", 0, 10), "free")
    wait_checks(a, b)


def wait_checks(a, b):
    answers = []
    for turn in range(5):  # each writes under its lock what the other then reads under its own
        answers += [a.wait("w", 0, END), "ok"]
        b.start("wait", "r", 0, 100)
        answers += [a.write(0, "turn %d" % turn), "ok", a.lock("u", 0, END), "ok", b.end(), "ok",
                    b.read(0, 6), ("turn %d" % turn).encode().hex(), b.lock("u", 0, END), "ok"]
    check("who waits sees what was written under the lock", *answers)
    answers = [a.lock("w", 0, 10), "ok"]
    b.start("wait", "w", 5, 10)
    answers += [a.lock("u", 0, 5), "ok", a.lock("r", 5, 5), "ok", a.lock("u", 5, 5), "ok", b.end(), "ok",
                a.test("w", 0, END), "w 5 10", b.lock("u", 0, END), "ok"]
    check("who waits gets it when the last obstacle goes", *answers)


if sys.argv[1] == "--serve":
    serve(sys.argv[2])
else:
    other = There(sys.argv[2:])
    checks(Here(sys.argv[1]), other)
    other.p.stdin.close()
    other.p.wait()
    sys.exit(failures > 0)
