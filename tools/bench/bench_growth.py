#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how the costs of a store grow with its keys: memory, opening, flushes, puts, gets beside puts, room.

Each step loads a store of so many records of 16 + 100 bytes into an empty directory, and measures it beside the other
engines. Where the process may make a memory cgroup, each engine runs in one of its own with the same limit.

  bench_growth.py [--steps 1e6,4e6,16e6,64e6,1e8] [--engines remixdb,rocksdb] [--db DIR] [--out FILE]
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench  # noqa: E402
import cgroup  # noqa: E402

KEY, VALUE = 16, 100
STEPS = "1e6,4e6,16e6,64e6,1e8"
LOOK_SECONDS = 0.02
RECORD_IN_MEMORY = KEY + VALUE + 48  # bytes of a memtable, about

# A row of the table: its title, its name in the figures, and how a number is shown.
ROWS = [
    ("anonymous memory after the load, MB", "load_mb", "{:.0f}"),
    ("anonymous memory, opened again, MB", "open_mb", "{:.1f}"),
    ("bytes of memory a key, opened again", "open_bytes_a_key", "{:.2f}"),
    ("opening warm, s", "open_s", "{:.3f}"),
    ("opening cold, MB read", "open_read_mb", "{:.1f}"),
    ("flush: files made", "flush_files", "{:.0f}"),
    ("flush: syncs", "flush_syncs", "{:.0f}"),
    ("processor, us a put", "put_us", "{:.2f}"),
    ("write amplification", "write_amp", "{:.2f}"),
    ("room / data", "space_amp", "{:.2f}"),
    ("loading, most room / data from 8 memtables on", "load_space", "{:.2f}"),
    ("longest put, ms", "put_max_ms", "{:.1f}"),
    ("descriptors", "descriptors", "{:.0f}"),
    ("get at rest, p99.9, us", "get_us", "{:.1f}"),
    ("get beside a writer, p99.9, us", "beside_us", "{:.1f}"),
    ("overwriting, processor, us a put", "over_us", "{:.2f}"),
    ("overwriting, longest put, ms", "over_max_ms", "{:.1f}"),
    ("overwriting, write amplification", "over_amp", "{:.2f}"),
    ("overwriting, most room / data", "over_space", "{:.2f}"),
    ("at rest after it, room / data", "rest_space", "{:.2f}"),
]


class Watch:
    """The most descriptors that this process's children have had at once, and the most bytes that the files took."""

    def __init__(self, directory):
        self.most, self.room, self._directory, self._end = 0, 0, directory, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._end.wait(LOOK_SECONDS):
            for child in children(os.getpid()):
                with contextlib.suppress(OSError):
                    self.most = max(self.most, len(os.listdir(f"/proc/{child}/fd")))
            self.room = max(self.room, room_of(self._directory))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        self._thread.join()


def room_of(directory):
    """The bytes of all files in a directory, as far as they stay while this looks."""
    room = 0
    for at, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                room += os.stat(os.path.join(at, name)).st_blocks * 512
    return room


def children(pid):
    """The processes that this one has started, and theirs."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid:
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def group_of(limit, directory):
    """What a child calls to enter a cgroup of its own with this limit; None: there is no limit."""
    if not limit:
        yield None
        return
    group = cgroup.make(limit, directory)
    try:
        yield group.enter
    finally:
        group.remove()


def run(engine, args, records, benchmarks, more=(), syncs=None):
    """The rows of one process, and what was watched meanwhile."""
    flags = [f"--num={records}", f"--key_size={KEY}", f"--value_size={VALUE}", f"--cache_mb={args.cache_mb}",
             f"--memtable_mb={args.memtable_mb}", "--drop=files", "--keep=1", f"--benchmarks={benchmarks}", *more]
    if args.limit_mb:
        flags.append(f"--memory_mb={args.limit_mb}")
    preload = {"LD_PRELOAD": args.syncs, "BENCH_SYNCS": syncs} if syncs else {}
    with group_of(args.limit_mb << 20, args.cgroup) as enter, Watch(args.db) as watch:
        rows = bench.run(engine, args.db, flags, enter, preload, keep=True)
    return rows, watch


def counts_of(engine, args, records, benchmarks):
    """Files made and syncs of a process that opens the store, runs the benchmarks and closes it."""
    with tempfile.NamedTemporaryFile() as out:
        run(engine, args, records, benchmarks, ["--use_existing_db=1"], out.name)
        files, syncs = pathlib.Path(out.name).read_text().split()
    return int(files), int(syncs)


def number(row, name):
    return float(row[name] or 0)


def measure(engine, args, records):
    """The figures of one engine at one step."""
    watched = f"fillrandom:unique:room_from={8 * args.memtable_mb}"
    load, loading = run(engine, args, records, f"{watched},waitidle,flush,waitidle")
    fill, rest = load[0], load[-1]
    again, opening = run(engine, args, records, "readrandom:ops=1,reopen,reopen,dropcaches,reopen,warm",
                             ["--use_existing_db=1"])
    names = [row["benchmark"] for row in again]
    opened, warm, cold = again[0], again[2], again[names.index("dropcaches") + 1]
    gets, _ = run(engine, args, records, f"warm,readrandom:ops={args.gets},readwhilewriting:ops={args.gets}",
                  ["--use_existing_db=1", "--histogram=1"])
    over, overwriting = run(engine, args, records, f"overwrite:ops={records // 2},flush,waitidle",
                            ["--use_existing_db=1"])
    figures = {
        "load_mb": number(rest, "rss_anon") / 1e6, "open_mb": number(opened, "rss_anon") / 1e6,
        "open_bytes_a_key": number(opened, "rss_anon") / records, "open_s": number(warm, "seconds"),
        "open_read_mb": number(cold, "read_bytes") / 1e6,
        "put_us": sum(number(row, "cpu_s") for row in load) * 1e6 / records,
        "write_amp": number(rest, "write_amp_total"), "space_amp": number(rest, "space_amp"),
        "put_max_ms": number(fill, "write_max_us") / 1e3, "descriptors": max(loading.most, opening.most),
        "get_us": number(gets[-2], "read_p999_us"), "beside_us": number(gets[-1], "read_p999_us"),
        "over_us": sum(number(row, "cpu_s") for row in over) * 1e6 / (records // 2),
        "over_max_ms": number(over[0], "write_max_us") / 1e3, "over_amp": number(over[-1], "write_amp_total"),
        "over_space": overwriting.room / (records * (KEY + VALUE)), "rest_space": number(over[-1], "space_amp"),
    }
    if number(fill, "room_most"):  # else the data has no 8 memtables
        figures["load_space"] = number(fill, "room_most")
    if args.syncs:
        # A flush of half a memtable of overwrites, all over the keys: what a process with two of them has more than one
        # with one. So neither the opening nor the close counts.
        nr = min(args.memtable_mb * (1 << 20) // 2 // RECORD_IN_MEMORY, records)
        two, one = (counts_of(engine, args, records, ",".join([f"overwrite:ops={nr},flush"] * n)) for n in (2, 1))
        figures["flush_files"], figures["flush_syncs"] = (a - b for a, b in zip(two, one))
    return figures


def short(records):
    return f"{records / 1e6:g} M"


def table(results, engines, steps):
    """The figures of all steps; engines beside each other in a cell."""
    head = [f"{' / '.join(engines)}, records", *[short(n) for n in steps]]
    rows = []
    for title, name, form in ROWS:
        cells = []
        for n in steps:
            all_of = [results.get((engine, n), {}).get(name) for engine in engines]
            cells.append(" / ".join("-" if v is None else form.format(v) for v in all_of))
        rows.append([title, *cells])
    return bench.table(head, rows)


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", default=STEPS, help="numbers of records, separated by commas")
    p.add_argument("--most", default="1e18", help="leaves out steps of more records")
    p.add_argument("--engines", default="remixdb,rocksdb")
    p.add_argument("--cache-mb", type=int, default=256)
    p.add_argument("--memtable-mb", type=int, default=64)
    p.add_argument("--gets", type=int, default=1000000, help="gets at rest, and as many beside a writer")
    p.add_argument("--limit-mb", type=int, default=3072, help="of the memory cgroup; 0: none is made")
    p.add_argument("--cgroup", help="directory of a cgroup hierarchy that may be written to")
    p.add_argument("--db", help="directory for the stores")
    p.add_argument("--syncs", default="", help="the library that counts files and syncs")
    p.add_argument("--out", help="the figures as JSON")
    args = p.parse_args(argv)
    most = float(args.most)
    args.steps = [int(float(n)) for n in args.steps.split(",") if float(n) <= most]
    built = bench.engines_built()
    args.engines = [e for e in args.engines.split(",") if e in built or "@" in e]
    if not args.steps or not args.engines:
        p.error("no step, or no engine that is built")
    return args


def may_limit(args):
    """Without the right to make a cgroup the steps run without a limit."""
    if not args.limit_mb:
        return
    try:
        cgroup.make(args.limit_mb << 20, args.cgroup).remove()
    except (cgroup.Refused, OSError) as e:
        print(f"without a limit of memory: {e}", file=sys.stderr)
        args.limit_mb = 0


def main():
    args = parse(sys.argv[1:])
    may_limit(args)
    results, failed = {}, False
    with tempfile.TemporaryDirectory(prefix="xdbgrowth-", dir=args.db) as db:
        args.db = db
        for n in args.steps:
            for engine in args.engines:
                began = time.monotonic()
                try:
                    results[engine, n] = measure(engine, args, n)
                except bench.Failed as e:
                    print(f"{engine}, {short(n)}: {e}", file=sys.stderr)
                    failed = True
                subprocess.run(["rm", "-rf", *map(str, pathlib.Path(db).iterdir())], check=True)
                print(f"{engine}, {short(n)}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            print(table(results, args.engines, [s for s in args.steps if s <= n]), flush=True)
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(
            [{"engine": e, "records": n, **figures} for (e, n), figures in results.items()], indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
