#!/usr/bin/python3
"""Rebuilds what an array holds from images of its drives, by docs/format-array.md alone: no code of Furrow is used.

    rebuild_from_document.py --volume NAME [--first BLOCK] [--count BLOCKS] [--log-count BLOCKS] IMAGE... > content

Gives COUNT blocks from FIRST on, and behind them the first LOG_COUNT blocks of the volume's log. Images may be missing, as far as the redundancy goes, and may be of members that are stale: those are left out. Says on
stderr what it found. Where the xxhash module is installed the superblocks' checksums are verified.
"""
import argparse, struct, sys

try:
    import xxhash
except ImportError:
    xxhash = None

BLOCK, CHUNK = 4096, 65536
ACTIVE = 1


def die(text):
    sys.exit("rebuild_from_document: " + text)


# ---- "Superblock" ----

def u(raw, offset, size):
    return int.from_bytes(raw[offset:offset + size], "little")


class Super:
    def __init__(self, raw):
        self.raw = raw
        self.events = u(raw, 96, 8)
        self.array = raw[48:64]
        self.member, self.slot = raw[120:136], u(raw, 136, 2)
        self.log_offset, self.log_bytes = u(raw, 160, 8), u(raw, 168, 8)
        self.log_copies, self.log_members = u(raw, 196, 2), u(raw, 198, 2)
        self.log_groups = u(raw, 206, 2) or 1
        self.members = u(raw, 200, 2)
        self.geometry = []
        for i in range(u(raw, 204, 2)):
            g = raw[512 + 64 * i:576 + 64 * i]
            self.geometry.append(dict(code=g[4], groups=u(g, 6, 2), k=u(g, 8, 2), m=u(g, 10, 2), strip=u(g, 12, 4),
                                      first=u(g, 16, 8), stripes=u(g, 24, 8), offset=u(g, 32, 8)))
        first = u(raw, 16, 4) == 1  # "Version 1"
        members, volumes = (1536, 5632) if first else (5632, 1536)
        self.table = []
        for i in range(u(raw, 202, 2)):
            e = raw[members + 64 * i:members + 64 * i + 64]
            self.table.append(dict(uuid=e[0:16], state=e[16], events=u(e, 24, 8)))
        self.volumes = {}
        for i in range(32):
            v = raw[volumes + 128 * i:volumes + 128 * i + 128]
            name = v[0:32].rstrip(b"\0").decode()
            if name:
                self.volumes[name] = dict(first=u(v, 56, 8), stripes=u(v, 64, 8), log_first=u(v, 72, 8), log_chunks=u(v, 80, 8))


def super_of(image):
    image.seek(0, 2)
    end = image.tell() // 65536 * 65536
    best = None
    for at in (65536, end - 65536):
        image.seek(at)
        raw = image.read(65536)
        if len(raw) != 65536 or raw[0:8] != b"FurrowAr" or u(raw, 16, 4) not in (1, 2) or u(raw, 24, 8):
            continue
        size = u(raw, 20, 4)
        if size not in range(16384, 65537, 4096) or (u(raw, 16, 4) == 1 and size != 16384):
            continue
        raw = raw[:size]
        if xxhash and xxhash.xxh3_64_intdigest(raw[0:8] + bytes(8) + raw[16:]) != u(raw, 8, 8):
            continue
        s = Super(raw)
        if not best or s.events > best.events:
            best = s
    return best


# ---- "Where strips lie": arithmetic ----

EXP, LOG = [0] * 512, [0] * 256
x = 1
for n in range(255):
    EXP[n] = EXP[n + 255] = x
    LOG[x] = n
    x <<= 1
    if x & 0x100:
        x ^= 0x11D


def mul(a, b):
    return EXP[LOG[a] + LOG[b]] if a and b else 0


def inverse(a):
    return EXP[255 - LOG[a]]


def scale(data, factor):
    return data.translate(bytes(mul(b, factor) for b in range(256)))


def xor(*parts):
    total = 0
    for p in parts:
        total ^= int.from_bytes(p, "little")
    return total.to_bytes(len(parts[0]), "little")


def recover(k, m, have, wanted):
    """Data position WANTED of a row, from HAVE: a function that gives the bytes of a position, or None."""
    lost = [i for i in range(k) if i == wanted or have(i) is None]
    others = [(i, have(i)) for i in range(k) if i not in lost]
    size = len(have(k) or (others[0][1] if others else b""))  # P, or whatever is there
    size = size or len(have(k + 1) or b"")
    p = have(k) if m >= 1 else None
    q = have(k + 1) if m >= 2 else None
    zero = bytes(size)
    if len(lost) == 1 and p is not None:
        return xor(p, *[d for _, d in others])
    if len(lost) == 1 and q is not None:  # Q + sum of 2^i D_i = 2^w D_w
        rest = xor(q, zero, *[scale(d, EXP[i]) for i, d in others])
        return scale(rest, inverse(EXP[wanted]))
    if len(lost) == 2 and p is not None and q is not None:
        # D_a + D_b = A;  2^a D_a + 2^b D_b = B  =>  D_a = (B + 2^b A) / (2^a + 2^b)
        a, b = wanted, [i for i in lost if i != wanted][0]
        big_a = xor(p, zero, *[d for _, d in others])
        big_b = xor(q, zero, *[scale(d, EXP[i]) for i, d in others])
        return scale(xor(big_b, scale(big_a, EXP[b])), inverse(EXP[a] ^ EXP[b]))
    die("more is lost than the redundancy can bring back")


class Array:
    def __init__(self, paths):
        found = []
        for path in paths:
            image = open(path, "rb")
            s = super_of(image)
            if s:
                found.append((s, image, path))
            else:
                print(path + ": no superblock", file=sys.stderr)
        if not found:
            die("no member")
        self.top = top = max((s for s, _, _ in found), key=lambda s: s.events)
        # "Rules of writing": who may be used
        self.image = {}
        for s, image, path in found:
            entry = top.table[s.slot] if s.slot < len(top.table) else None
            good = entry and s.array == top.array and entry["uuid"] == s.member and entry["state"] == ACTIVE and s.events >= entry["events"]
            print("%s: slot %d, event %d%s" % (path, s.slot, s.events, "" if good else ", left out"), file=sys.stderr)
            if good:
                self.image[s.slot] = image

    def read(self, slot, offset):
        if slot not in self.image:
            return None
        self.image[slot].seek(offset)
        return self.image[slot].read(BLOCK)

    def data(self, volume, block):
        v = self.top.volumes[volume]
        g = [g for g in self.top.geometry if g["first"] <= v["first"] < g["first"] + g["stripes"]][0]
        k, m, rows = g["k"], g["m"], g["strip"] // BLOCK
        stripe, rest = divmod(block, k * rows)
        position, row = divmod(rest, rows)
        i = v["first"] + stripe - g["first"]
        group, r = i % g["groups"], i // g["groups"]

        def have(p):
            return self.read(group * (k + m) + (p + r) % (k + m), g["offset"] + r * g["strip"] + row * BLOCK)

        own = have(position)
        if own is not None:
            return own
        if g["code"] == 1:
            for p in range(k + m):
                if have(p) is not None:
                    return have(p)
        return recover(k, m, have, position)

    def log(self, volume, block):
        t = self.top
        chunk, rest = divmod(block, CHUNK // BLOCK)
        c = t.volumes[volume]["log_first"] + chunk
        width = t.log_members // t.log_groups
        for j in range(t.log_copies):
            q = c // t.log_groups * t.log_copies + j
            got = self.read(c % t.log_groups * width + q % width, t.log_offset + q // width * CHUNK + rest * BLOCK)
            if got is not None:
                return got
        die("no copy of the log")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volume", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--log-count", type=int, default=0)
    parser.add_argument("image", nargs="+")
    args = parser.parse_args()
    array = Array(args.image)
    for block in range(args.first, args.first + args.count):
        sys.stdout.buffer.write(array.data(args.volume, block))
    for block in range(args.log_count):
        sys.stdout.buffer.write(array.log(args.volume, block))


main()
