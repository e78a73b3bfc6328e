#!/usr/bin/python3
"""name_checks.py DIR WORKERS STOP: makes, renames, links and removes names in DIR until the file STOP is there, each worker in a
directory of its own, so that what every call must say is known: whoever makes a name that is not there may not hear EEXIST,
and whoever removes one that is there may not hear ENOENT, however often the client had to ask (a server that was killed in
between has to know what it had done already). In the end the directories must hold just what they should.

Prints "ok N operations" or "not ok WHY"; exit status 1.
"""
import os
import random
import sys
import time


class Worker:
    def __init__(self, top, seed):
        self.random = random.Random(seed)
        self.top, self.serial, self.count = top, 0, 0
        self.files, self.dirs, self.links = {}, [], {}  # path: content; paths; path: target
        os.mkdir(top)

    def new(self):
        self.serial += 1
        return "%s/n%d" % (self.random.choice([self.top] + self.dirs[-3:]), self.serial)

    def make(self):
        path, data = self.new(), b"%d" % self.serial
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 + self.random.randrange(64))
        os.write(fd, data)
        os.close(fd)
        self.files[path] = data

    def mkdir(self):
        path = self.new()
        os.mkdir(path)
        self.dirs.append(path)

    def symlink(self):
        path = self.new()
        os.symlink("to%d" % self.serial, path)
        self.links[path] = "to%d" % self.serial

    def link(self):
        if self.files:
            old, path = self.random.choice(list(self.files)), self.new()
            os.link(old, path)
            self.files[path] = self.files[old]

    def rename(self):
        if self.files:
            old, path = self.random.choice(list(self.files)), self.new()
            os.rename(old, path)
            self.files[path] = self.files.pop(old)

    def replace(self):
        if len(self.files) > 1:
            old, path = self.random.sample(list(self.files), 2)
            same = os.stat(old).st_ino == os.stat(path).st_ino
            os.rename(old, path)
            if not same:  # else nothing happens, says POSIX
                self.files[path] = self.files.pop(old)

    def unlink(self):
        kind = self.random.choice([self.files, self.links])
        if kind:
            path = self.random.choice(list(kind))
            os.unlink(path)
            del kind[path]

    def rmdir(self):
        if self.dirs:
            path = self.dirs[-1]
            for kind in self.files, self.links:
                for name in [n for n in kind if os.path.dirname(n) == path]:
                    os.unlink(name)
                    del kind[name]
            os.rmdir(path)
            self.dirs.pop()

    def step(self):
        small = len(self.files) + len(self.links) < 40
        steps = [self.make, self.symlink, self.link] * (2 if small else 1) + [self.rename, self.replace]
        steps += [self.unlink, self.unlink] if small else [self.unlink] * 6
        steps += [self.mkdir] if len(self.dirs) < 5 else [self.rmdir]
        self.random.choice(steps)()
        self.count += 1

    def check(self):
        found = set()
        for where, dirs, files in os.walk(self.top):
            for name in files:
                path = os.path.join(where, name)
                found.add(path)
                if os.path.islink(path):
                    assert os.readlink(path) == self.links[path], path
                else:
                    with open(path, "rb") as f:
                        assert f.read() == self.files[path], path
            found.update(os.path.join(where, name) for name in dirs)
        expected = set(self.files) | set(self.links) | set(self.dirs)
        assert found == expected, "too many %r, missing %r" % (sorted(found - expected), sorted(expected - found))


def work(top, seed, stop):
    worker = Worker(top, seed)
    while not os.path.exists(stop):
        worker.step()
    worker.check()
    return worker.count


def main():
    where, workers, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    pids = []
    for n in range(workers):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                said = "%d" % work("%s/w%d" % (where, n), n, stop)
            except BaseException as e:  # whatever it is, it is told
                said = "worker %d, %.1f s: %s: %s" % (n, time.monotonic(), type(e).__name__, e)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        pids.append((pid, read))
    total, wrong = 0, []
    for pid, read in pids:
        said = os.read(read, 4000).decode()
        os.waitpid(pid, 0)
        if said.isdigit():
            total += int(said)
        else:
            wrong.append(said or "a worker died")
    print("not ok " + "; ".join(wrong) if wrong else "ok %d operations" % total)
    sys.exit(1 if wrong else 0)


main()
