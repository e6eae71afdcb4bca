#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Python programs on RemixDB and on the bindings of other stores that are installed (plyvel, lmdb, rocksdict),
side by side; prints the medians as a table.

Every store runs in a process of its own on a fresh directory. The stores take turns over several rounds, each round
beginning with another one. No store syncs its log. The keys are 16 random bytes in hexadecimal digits' order of
arrival, the values 120 bytes.

  bench_python.py [--stores remixdb,lmdb,...] [--num 200000] [--rounds 5] [--db DIR]

A store may be remixdb-ctypes, which is xdb.py without its extension module, or remixdb-plyvel, the program for plyvel
on remixdb.plyvel."""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH = 1000
CACHE, MEMTABLE = 256 << 20, 64 << 20


class Store:
    """The loops. `target` has put and get; a store whose calls need a transaction replaces writing and reading."""

    def writing(self):
        return contextlib.nullcontext(self.target)

    reading = writing

    def walk(self, target):
        return iter(target)

    def put(self, pairs):
        with self.writing() as target:
            put = target.put
            for key, value in pairs:
                put(key, value)

    def get(self, keys):
        with self.reading() as target:
            get = target.get
            for key in keys:
                get(key)

    def scan(self):
        n = 0
        with self.reading() as target:
            for _, _ in self.walk(target):
                n += 1
        return n

    def batch(self, batches):
        for pairs in batches:
            with self.new_batch() as batch:
                put = batch.put
                for key, value in pairs:
                    put(key, value)

    def close(self):
        self.target.close()


class Remixdb(Store):
    """One put, get or batch is a call of a ref."""

    def __init__(self, place):
        sys.path.insert(0, str(ROOT))
        import xdb
        assert (xdb._fast is None) == (os.environ.get("REMIXDB_PYTHON") == "ctypes"), "make python"
        self.db = xdb.Xdb(place, CACHE >> 20, MEMTABLE >> 20)
        self.target = self.db.ref()
        self.settle, self.new_batch, self.close = self.target.flush, self.target.batch, self.db.close

    def walk(self, target):
        return target.iter()


class Plyvel(Store):
    @staticmethod
    def module():
        import plyvel
        return plyvel

    def __init__(self, place):
        self.target = self.module().DB(str(place), create_if_missing=True, lru_cache_size=CACHE,
                                       write_buffer_size=MEMTABLE, bloom_filter_bits=10, compression=None)
        self.settle, self.new_batch = self.target.compact_range, self.target.write_batch


class RemixdbPlyvel(Plyvel):
    """The same program, on the interface of plyvel that RemixDB has."""

    @staticmethod
    def module():
        sys.path[:0] = [str(ROOT), str(ROOT / "python")]
        from remixdb import plyvel
        return plyvel


class Lmdb(Store):
    """All puts, and all gets, are in one transaction, which is the fastest way. A batch is a transaction."""

    def __init__(self, place):
        import lmdb
        self.target = lmdb.open(str(place), map_size=8 << 30, sync=False, metasync=False, writemap=True)

    def settle(self):
        pass

    def writing(self):
        return self.target.begin(write=True)

    new_batch = writing

    def reading(self):
        return self.target.begin()

    def walk(self, target):
        return target.cursor()


class Rocksdict(Store):
    def __init__(self, place):
        import rocksdict
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(MEMTABLE)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(CACHE))
        table.set_bloom_filter(10, False)
        options.set_block_based_table_factory(table)
        self.target = rocksdict.Rdict(str(place), options)
        self.make_batch = functools.partial(rocksdict.WriteBatch, raw_mode=True)

    def settle(self):
        self.target.flush()
        self.target.compact_range(None, None)

    def walk(self, target):
        return target.items()

    @contextlib.contextmanager
    def new_batch(self):
        batch = self.make_batch()
        yield batch
        self.target.write(batch)


STORES = {"remixdb": Remixdb, "remixdb-ctypes": Remixdb, "remixdb-plyvel": RemixdbPlyvel, "plyvel": Plyvel,
          "lmdb": Lmdb, "rocksdict": Rocksdict}
STEPS = "put", "get", "scan", "batch"


def measure(name, num, place):
    """Prints nanoseconds for each operation of each step, as JSON."""
    rnd = random.Random(1)
    keys = [b"%016x" % rnd.getrandbits(64) for _ in range(num)]
    pairs = [(key, rnd.randbytes(120)) for key in keys]
    reads = rnd.sample(keys, num)
    others = [(b"%016x" % rnd.getrandbits(64), value) for _, value in pairs]
    batches = [others[i:i + BATCH] for i in range(0, num, BATCH)]
    store = STORES[name](place)
    took = {}

    def timed(step, call, *args):
        began = time.perf_counter_ns()
        result = call(*args)
        took[step] = (time.perf_counter_ns() - began) / num
        return result

    timed("put", store.put, pairs)
    store.settle()
    store.get(reads)  # the caches are warm then
    timed("get", store.get, reads)
    assert timed("scan", store.scan) == num
    timed("batch", store.batch, batches)
    store.close()
    print(json.dumps(took))


def run_round(name, num, db):
    place = tempfile.mkdtemp(prefix="bench-python-", dir=db)
    env = {**os.environ, "REMIXDB_PYTHON": "ctypes" if name == "remixdb-ctypes" else "",
           "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([sys.executable, __file__, "--measure", name, "--num", str(num), "--db", place], env=env,
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(place)


def installed(name):
    module = name.partition("-")[0]
    return module == "remixdb" or subprocess.run([sys.executable, "-c", f"import {module}"],
                                                 capture_output=True).returncode == 0


def table(results):
    """The medians of all rounds, in thousand operations a second."""
    lines = ["| thousand operations per second | " + " | ".join(STEPS) + " |", "|---|" + "---:|" * len(STEPS)]
    for name, rounds in results.items():
        medians = (statistics.median(one[step] for one in rounds) for step in STEPS)
        lines.append(f"| {name} | " + " | ".join(f"{1e6 / ns:,.0f}" for ns in medians) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--num", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--db")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.num, pathlib.Path(args.db) / "store")
    names = [name for name in args.stores.split(",") if name in STORES and installed(name)]
    results = {name: [] for name in names}
    for i in range(args.rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            results[name].append(run_round(name, args.num, args.db))
            print(name, {step: round(ns) for step, ns in results[name][-1].items()}, file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
