#!/usr/bin/python3
"""traffic_check.py DIR: what furrow clients, furrow top and the metrics page said of a load against what fio, which made it,
has counted: reads, writes, and their bytes, within 1 %.

DIR holds fio.json, clients.{before,after} (JSON), metrics.{before,after} and top (one JSON object a line). Prints "ok NAME" or
"not ok NAME: why".
"""
import json
import re
import sys


def clients(name):
    """{(read|write, count|bytes): sum over all clients}"""
    with open(name) as f:
        listed = json.load(f)["clients"]
    return {(io, what): sum(c[io][what] for c in listed) for io in ("read", "write") for what in ("count", "bytes")}


def metrics(name):
    sums = {}
    with open(name) as f:
        for line in f:
            m = re.match(r'furrow_client_io(_bytes)?_total\{client="[^"]*",io="(\w+)"\} (\d+)', line)
            if m:
                key = (m[2], "bytes" if m[1] else "count")
                sums[key] = sums.get(key, 0) + int(m[3])
    return sums


def top(name):
    sums = {}
    with open(name) as f:
        for line in f:
            if not line.endswith("\n"):
                continue  # cut off in the middle
            for c in json.loads(line)["clients"]:
                for io in ("read", "write"):
                    for what in ("count", "bytes"):
                        sums[io, what] = sums.get((io, what), 0) + c[io][what]
    return sums


def fio(name):
    with open(name) as f:
        text = f.read()
    jobs = json.loads(text[text.index("{"):])["jobs"]
    return {(io, what): sum(j[io][key] for j in jobs) for io in ("read", "write")
            for what, key in (("count", "total_ios"), ("bytes", "io_bytes"))}


def difference(after, before):
    return {key: after[key] - before.get(key, 0) for key in after}


where = sys.argv[1]
load = fio(where + "/fio.json")
told = {"furrow clients": difference(clients(where + "/clients.after"), clients(where + "/clients.before")),
        "the metrics page": difference(metrics(where + "/metrics.after"), metrics(where + "/metrics.before")),
        "furrow top": top(where + "/top")}
for source, sums in told.items():
    wrong = ["%s %s: %d, fio has %d" % (*key, sums.get(key, 0), load[key]) for key in load
             if not load[key] or abs(sums.get(key, 0) - load[key]) > load[key] / 100]
    same = ", ".join("%d %ss of %d bytes" % (sums[io, "count"], io, sums[io, "bytes"]) for io in ("read", "write") if not wrong)
    print("not ok %s: %s" % (source, "; ".join(wrong)) if wrong else "ok %s agrees with fio: %s" % (source, same))
