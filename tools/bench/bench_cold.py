#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures stores whose data are larger than memory, beside what the disk itself gives.

Each engine runs xdbbench.out in a memory cgroup of its own with the same limit, and the engines take turns over the
rounds. Every operation is told with its rate, latency, reads, bytes and trips to the disk, and processor time.

  bench_cold.py [--records 10000000] [--value 400] [--ratio 4,10] [--engines remixdb,rocksdb] [--rounds 3] [--db DIR]
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench  # noqa: E402
import cgroup  # noqa: E402

KEY = 16
# Parts of the memory limit, where --cache-mb and --memtable-mb do not say it.
CACHE_PART, MEMTABLE_PART = 0.21, 0.055
MULTI, NEXTS, THREADS, READ_RATE = 64, 50, 8, 1000
SCANS_OF_ALL = "scans over as many records as there are"
LOADING = f"load beside {READ_RATE} gets/s"
STATES = ("loaded", "scanned", "ycsb", "compacted", "loading")
DISK = {
    "disk depth 1": "diskread", "disk depth 8": "diskread:depth=8", "disk depth 64": "diskread:depth=64",
    "disk batch 10": "diskbatch:batch_size=10", "disk batch 14": "diskbatch:batch_size=14",
    "disk batch 64": "diskbatch:batch_size=64", "disk sequential": "diskseq",
    "disk sequential depth 4": "diskseq:depth=4",
}

# ---- what runs


class Step:
    """A benchmark of xdbbench.out: `name` in the tables, None for what lies between the passes."""

    def __init__(self, label, state=None, name=None, per=1):
        self.label, self.state, self.name, self.per = label, state, name, per


def read_steps(state, ops, drop):
    """Reads of a store in one state; scans come last, for they may cause merges."""
    benchmarks = [
        ("get", f"readrandom:ops={ops}"),
        ("get absent", f"readmissing:ops={ops}"),
        ("seek", f"seekrandom:ops={ops}"),
        ("seek absent", f"seekrandom:seek_missing:ops={ops}"),
        (f"multi_get of {MULTI}", f"multireadrandom:batch_size={MULTI}:ops={2 * ops // MULTI * MULTI}"),
        (f"get, {THREADS} threads", f"readrandom:threads={THREADS}:ops={ops // 4}"),
        *scans(ops),
        ("full scan", "readseq"),
    ]
    steps = []
    for name, label in benchmarks:
        steps += drop + [Step(label, state, name, MULTI if name.startswith("multi") else 1)]
    return steps


def scans(ops):
    return [(f"seek + {NEXTS} next", f"seekrandom:seek_nexts={NEXTS}:ops={ops // 4}"),
            (f"seek + {NEXTS} prev", f"seekrandom:seek_nexts={NEXTS}:backwards:ops={ops // 4}")]


def plan(records, ops, states, drop_caches=True):
    """The steps of one engine's process, in order."""
    drop = [Step("dropcaches")] if drop_caches else []
    idle = [Step("waitidle")]
    steps = [Step("fillrandom", "load", "load")] + idle
    if "loaded" in states:
        steps += read_steps("loaded", ops, drop)
    if "scanned" in states:
        all_of_it = f"seekrandom:seek_nexts={NEXTS}:ops={max(records // NEXTS, 1)}"
        steps += drop + [Step(all_of_it, "scanned", SCANS_OF_ALL)] + idle
        for name, label in scans(ops):
            steps += drop + [Step(label, "scanned", name)]
    if "ycsb" in states:
        for letter in "abfd":
            steps += idle + drop + [Step(f"ycsb{letter}:ops={5 * ops}", "ycsb", f"YCSB {letter.upper()}")]
        steps += idle + drop
        steps += [Step(f"ycsbe:ops={ops}", "ycsb", f"YCSB E, {half} half") for half in ("first", "second")]
        steps += idle
    if "compacted" in states:
        steps += [Step("compact", "compacted", "compact")] + idle
        steps += read_steps("compacted", ops, drop)
    if "loading" in states:
        steps.append(Step(f"fillwhilereading:read_rate={READ_RATE}", "loading", LOADING))
    return with_states(steps)


def with_states(steps):
    """The work of a step between the passes was caused before it."""
    out, state = [], None
    for step in steps:
        state = step.state or state
        out.append(Step(step.label, state, step.name, step.per))
    return out


def disk_plan(ops):
    return [Step(f"{label}:ops={ops}" if ":" in label or label == "diskread" else label, "disk", name,
                 int(name.split()[-1]) if "batch" in name else 1) for name, label in DISK.items()]


def match(steps, rows):
    """Pairs of a step and its row. An engine has no row for what it cannot do."""
    at = 0
    for step in steps:
        if at < len(rows) and rows[at]["benchmark"] == step.label:
            yield step, rows[at]
            at += 1
    if at < len(rows):
        raise ValueError(f"a row of {rows[at]['benchmark']}, which was not asked for")


# ---- figures of a row


def number(text):
    """None: not known."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def per_unit(row, column, units, scale=1):
    value = number(row.get(column))
    return None if value is None or not units else value * scale / units


def derive(step, row):
    """What the tables show of a row, by operation; of a multi_get and a batch, by call."""
    units = float(row["ops"]) / step.per
    seconds = float(row["seconds"])
    kind = "read" if float(row["reads"]) or step.state == "loading" else "write"
    figures = {
        "rate": units / seconds if seconds else 0,
        "mean_us": seconds * 1e6 * float(row["threads"]) / units if units else seconds * 1e6,
        "p50_us": number(row[f"{kind}_p50_us"]),
        "p99_us": number(row[f"{kind}_p99_us"]),
        "write_max_us": number(row["write_max_us"]),
        "reads": per_unit(row, "disk_reads", units),
        "kb": per_unit(row, "read_bytes", units, 1 / 1024),
        "trips": per_unit(row, "waits", units),
        "own_reads": per_unit(row, "own_reads", units),
        "own_kb": per_unit(row, "own_read_bytes", units, 1 / 1024),
        "own_trips": per_unit(row, "own_trips", units),
        "user_us": per_unit(row, "user_s", units, 1e6),
        "system_us": per_unit(row, "system_s", units, 1e6),
        "written_kb": per_unit(row, "write_bytes", units, 1 / 1024),
        "anon_mb": per_unit(row, "rss_anon", 1, 1e-6),
    }
    return figures


def disturbed(row):
    """Whether other processes read from the disk meanwhile: then `reads` are not this engine's alone."""
    disk, own = number(row.get("disk_read_bytes")), number(row.get("read_bytes"))
    return disk is not None and own is not None and disk > 1.1 * own + (1 << 20)


def record(step, row, settings):
    """A line of the results: the row as numbers, and what it belongs to. A step between the passes has no operation."""
    values = {k: v if number(v) is None else number(v) for k, v in row.items()}
    return {**settings, "state": step.state, "operation": step.name, **values, "per": step.per,
            "disturbed": disturbed(row), "by_operation": derive(step, row)}


def medians(records):
    """{(state, operation): {engine: {figure: median over the rounds}}}, in the order they ran."""
    groups = {}
    for r in records:
        if r["operation"]:
            groups.setdefault((r["state"], r["operation"]), {}).setdefault(r["engine"], []).append(r)
    return {key: {engine: median_of(rs) for engine, rs in by_engine.items()} for key, by_engine in groups.items()}


def median_of(records):
    out = {"disturbed": any(r["disturbed"] for r in records)}
    for figure in records[0]["by_operation"]:
        known = [r["by_operation"][figure] for r in records if r["by_operation"][figure] is not None]
        out[figure] = statistics.median(known) if known else None
    return out


# ---- the disk's limit


def limit_us(operation, disk, value):
    """The least time that an operation takes on this disk, with nothing of it in memory. None: not known."""
    mean = {name.removeprefix("disk "): figures["mean_us"] for name, figures in disk.items()}
    if not mean:
        return None
    if operation in ("get", "seek", "seek absent"):
        return mean["depth 1"]
    if operation.startswith("multi_get"):
        return mean[f"batch {MULTI}"]
    if operation.startswith("get, "):  # each of its threads has one of the reads in flight
        return THREADS * mean[f"depth {THREADS}"]
    if operation.startswith("seek + "):
        return mean["depth 1"] + mean["batch 10"]
    if operation == "full scan":
        return mean["sequential"] * (KEY + value) / (1 << 20)
    return None


# ---- tables


def short(v):
    """Three digits."""
    if v is None:
        return "-"
    if v >= 100:
        return f"{v:.0f}"
    return f"{v:.1f}" if v >= 10 else f"{v:.2f}" if v >= 0.1 or v == 0 else f"{v:.3f}"


def kops(v):
    return "-" if not v else short(v / 1000)


def rate_cell(figures):
    if not figures:
        return "-"
    return kops(figures["rate"]) + (f" ({short(figures['p50_us'])})" if figures["p50_us"] else "")


def summary(m, engines, disk, value):
    """Rates beside each other with the median latency, which disturbances move less, and the first engine beside the
    disk."""
    first, others = engines[0], engines[1:]
    rows = []
    for (state, operation), by_engine in m.items():
        if state == "disk" or operation == "compact":
            continue
        mine = by_engine.get(first)
        rates = [rate_cell(by_engine.get(e)) for e in engines]
        ratios = [short(mine["rate"] / by_engine[e]["rate"]) if mine and by_engine.get(e, {}).get("rate") else "-"
                  for e in others]
        limit = limit_us(operation, disk, value)
        beside = short(mine["mean_us"] / limit) if mine and limit else "-"
        rows.append([state, operation, *rates, *ratios, short(limit), beside])
    head = ["state", "operation", *[f"{e}, kops (p50, us)" for e in engines], *[f"/ {e}" for e in others], "limit, us",
            f"{first} / limit"]
    return bench.table(head, rows)


COLUMNS = [("p50, us", "p50_us"), ("p99, us", "p99_us"), ("mean, us", "mean_us"), ("reads", "reads"), ("KB", "kb"),
           ("trips", "trips"), ("own reads", "own_reads"), ("own KB", "own_kb"), ("own trips", "own_trips"),
           ("user, us", "user_us"), ("system, us", "system_us"), ("KB written", "written_kb"), ("anon, MB", "anon_mb")]


def details(m, engines):
    """By operation and engine: what it costs."""
    rows = []
    for (state, operation), by_engine in m.items():
        for engine in engines:
            figures = by_engine.get(engine)
            if state != "disk" and figures:
                shown = {column: short(figures[column]) for _, column in COLUMNS}
                if figures["disturbed"] and figures["reads"] is not None:
                    shown["reads"] += "~"
                rows.append([state, operation, engine, kops(figures["rate"]), *shown.values()])
    return bench.table(["state", "operation", "engine", "kops", *[title for title, _ in COLUMNS]], rows)


def totals_of(records):
    """What one process did in all, {title: value}."""
    by = {(r["state"], r["operation"]): r for r in records if r["operation"]}
    states = dict.fromkeys(r["state"] for r in records)
    out = {f"{s}: MB written": sum(r["write_bytes"] for r in records if r["state"] == s) / 1e6 for s in states}
    out["written in all, MB"] = sum(r["write_bytes"] for r in records) / 1e6
    out["read in all, MB"] = sum(r["read_bytes"] for r in records) / 1e6
    out["processor time in all, s"] = sum(r["cpu_s"] for r in records)
    out["memory of its own at most, MB"] = max(r["rss_anon"] for r in records) / 1e6
    if ("load", "load") in by:
        out["longest put of the load, ms"] = by["load", "load"]["write_max_us"] / 1e3
    rest, beside = by.get(("loaded", "get")), by.get(("loading", LOADING))
    if rest and beside:
        out["longest put of the load beside gets, ms"] = beside["write_max_us"] / 1e3
        out["p99 of a get at rest, us"] = rest["read_p99_us"]
        out["p99 of a get beside a load, us"] = beside["read_p99_us"]
        out["p99 beside a load / at rest"] = beside["read_p99_us"] / rest["read_p99_us"] if rest["read_p99_us"] else 0
    return out


def totals(records, engines):
    """Medians over the rounds of what the processes did in all."""
    by_engine = {}
    for engine in engines:
        rounds = {}
        for r in records:
            if r["engine"] == engine:
                rounds.setdefault(r["round"], []).append(r)
        by_engine[engine] = [totals_of(rs) for rs in rounds.values()]
    titles = dict.fromkeys(title for per_round in by_engine.values() for each in per_round for title in each)
    rows = []
    for title in titles:
        values = [[each[title] for each in by_engine[e] if title in each] for e in engines]
        rows.append([title, *[short(statistics.median(v)) if v else "-" for v in values]])
    return bench.table(["in all", *engines], rows)


def disk_table(disk):
    rows = [[name, kops(f["rate"]), short(f["mean_us"]), short(f["p50_us"]), short(f["p99_us"]),
             short(f["user_us"] + f["system_us"])] for name, f in disk.items()]
    return bench.table(["the disk itself", "kops", "mean, us", "p50, us", "p99, us", "processor, us"], rows)


def markdown(records, engines, args, memory):
    m = medians(records)
    disk = {operation: by_engine["disk"] for (state, operation), by_engine in m.items() if state == "disk"}
    data = args.records * (KEY + args.value)
    return "\n".join([
        f"# Data of {data / 1e6:.0f} MB in a memory of {memory['limit'] / 1e6:.0f} MB\n",
        f"{args.records} records of {KEY} + {args.value} bytes, cache {memory['cache_mb']} MiB, memtable "
        f"{memory['memtable_mb']} MiB, compression {args.compression}, io {args.io}, direct {int(args.direct)}; "
        f"medians of {args.rounds} rounds.\n", disk_table(disk), summary(m, engines, disk, args.value),
        "By operation: reads of the disk, KB that the process fetched, trips (how often the thread slept), RemixDB's "
        "own counters, processor time of the whole process. ~: others read from the disk meanwhile.\n",
        details(m, engines), totals(records, engines)])


# ---- running


def memory_of(args, ratio):
    """The cgroup's limit in bytes, and what of it is block cache and memtable."""
    data = args.records * (KEY + args.value)
    limit = args.memory_mb << 20 if args.memory_mb else int(data / ratio)
    limit -= limit % 4096
    return {"limit": limit, "cache_mb": args.cache_mb or max(int(limit * CACHE_PART) >> 20, 1),
            "memtable_mb": args.memtable_mb or max(int(limit * MEMTABLE_PART) >> 20, 1)}


def flags_of(engine, args, memory, steps):
    flags = [f"--num={args.records}", f"--key_size={KEY}", f"--value_size={args.value}", "--histogram",
             f"--cache_mb={memory['cache_mb']}", f"--memtable_mb={memory['memtable_mb']}", "--drawn_ahead=4096",
             f"--memory_mb={memory['limit'] >> 20}",
             f"--compression={args.compression}", f"--direct_io={int(args.direct)}", f"--seed={args.seed}",
             "--benchmarks=" + ",".join(s.label for s in steps)]
    if engine.startswith("remixdb"):
        flags.append(f"--io={args.io}")
    if args.drop_caches != "none":
        flags.append(f"--drop={args.drop_caches}")
    return flags


def run_in_group(name, engine, args, memory, steps, settings):
    """The records of one process in a group of its own, and None or why it did not end well."""
    group = cgroup.make(memory["limit"], args.cgroup)
    failure = None
    try:
        rows = bench.run(engine, args.db, flags_of(engine, args, memory, steps), group.enter)
    except bench.Failed as e:
        rows, failure = e.rows, str(e)
    finally:
        figures = group.figures()
        group.remove()
    if failure and figures["killed"]:
        failure += f"\nThe kernel killed it: {memory['limit'] >> 20} MiB are too little for it."
    settings = {**settings, "engine": name, "memory": {**memory, **figures}}
    return [record(step, dict(row, engine=name), settings) for step, row in match(steps, rows)], failure


def measure(args, ratio, engines, out):
    memory = memory_of(args, ratio)
    directory = out / (f"{args.memory_mb}MiB" if args.memory_mb else f"{ratio:g}x")
    directory.mkdir(parents=True, exist_ok=True)
    steps = plan(args.records, args.ops, args.states, args.drop_caches != "none")
    records, failed = [], []
    for round_nr in range(args.rounds):
        turn = round_nr % len(engines)
        turns = [("disk", engines[0], disk_plan(args.ops))]
        turns += [(e, e, steps) for e in engines[turn:] + engines[:turn]]
        for name, engine, its_steps in turns:
            print(f"{directory.name}, round {round_nr + 1} of {args.rounds}: {name}", flush=True)
            settings = {"ratio": ratio, "round": round_nr + 1}
            found, failure = run_in_group(name, engine, args, memory, its_steps, settings)
            records += found
            if failure:  # what it has done counts, and the others are measured all the same
                failed.append(name)
                print(f"bench_cold.py: {failure}", file=sys.stderr, flush=True)
            path = directory / f"{name.replace('/', '_')}-{round_nr + 1}.jsonl"
            path.write_text("".join(json.dumps(r) + "\n" for r in found))
        text = markdown(records, engines, args, memory)
        (directory / "summary.md").write_text(text)
    print(text)
    print(f"written: {directory}/summary.md, *.jsonl", flush=True)
    return failed


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--records", type=int, default=10_000_000)
    p.add_argument("--value", type=int, default=400, help="bytes; keys have 16")
    p.add_argument("--ratio", default="4,10", help="data to memory, separated by commas")
    p.add_argument("--memory-mb", type=int, help="the memory limit itself, in place of --ratio")
    p.add_argument("--cache-mb", type=int, help="block cache (about a fifth of the memory)")
    p.add_argument("--memtable-mb", type=int, help="memtable (about a twentieth of it)")
    p.add_argument("--io", choices=("auto", "uring", "aio", "sync"), default="auto", help="of RemixDB")
    p.add_argument("--direct", action="store_true", help="direct I/O, with the engines that have it")
    p.add_argument("--compression", choices=("none", "zstd", "lz4", "snappy"), default="none")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--ops", type=int, help="gets and seeks of a pass; others have a part of it (records / 100)")
    p.add_argument("--states", default=",".join(STATES), help="separated by commas")
    p.add_argument("--drop-caches", choices=("files", "system", "none"), default="files",
                   help="before each pass: the store's files leave the page cache, or the system's is emptied")
    p.add_argument("--engines", help="separated by commas (remixdb,rocksdb as far as they are built); the ratios are "
                   "of the first; remixdb@DIR is the library in DIR")
    p.add_argument("--cgroup", help="a cgroup's directory, below which groups may be made")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--db", default=os.environ.get("TMPDIR") or tempfile.gettempdir(), help="where the stores go")
    p.add_argument("--out", default=bench.ROOT / "bench" / "results" / "cold", type=pathlib.Path)
    args = p.parse_args(argv)
    try:
        args.ratios = [float(r) for r in args.ratio.split(",")]
    except ValueError:
        p.error(f"ratio: {args.ratio} is no list of numbers")
    args.states = args.states.split(",")
    args.ops = args.ops or max(args.records // 100, 4 * MULTI)
    for s in args.states:
        if s not in STATES:
            p.error(f"states: {s} is none of {', '.join(STATES)}")
    if min(args.records, args.value, args.rounds, *args.ratios) < 1:
        p.error("records, value, rounds and ratio: at least one")
    return p, args


def main():
    p, args = parse(sys.argv[1:])
    built = bench.engines_built()
    engines = args.engines.split(",") if args.engines else [e for e in ("remixdb", "rocksdb") if e in built]
    for engine in engines:
        if engine.partition("@")[0] not in built:
            p.error(f"xdbbench.out was built without {engine}; make bench-deps installs the other stores")
    os.makedirs(args.db, exist_ok=True)
    failed = []
    try:
        for ratio in [0] if args.memory_mb else args.ratios:
            failed += measure(args, ratio, engines, args.out)
    except cgroup.Refused as e:
        sys.exit(f"bench_cold.py: {e}")
    if failed:
        sys.exit(f"bench_cold.py: these did not end well: {', '.join(dict.fromkeys(failed))}")


if __name__ == "__main__":
    main()
