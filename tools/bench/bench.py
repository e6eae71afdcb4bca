#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures stores side by side with xdbbench.out; writes medians and ratios, as tables (Markdown, CSV) and a chart
(SVG).

Every engine runs in a process of its own on a fresh directory; the engines take turns over several rounds, each round
beginning with another one, so that what disturbs the machine for a while disturbs all alike.

  bench.py [--scenario fits] [--engines remixdb,lmdb,...] [--rounds 3] [--db DIR] [--out bench/results] [-- FLAGS OF
  xdbbench.out]

An engine may be remixdb@DIR: the libremixdb.so in DIR instead of the one beside the program, to compare two builds.
"""

import argparse
import csv
import datetime
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

READS = ("readrandom,readrandom:distribution=zipfian,readmissing,multireadrandom,seekrandom,seekrandom:seek_nexts=50,"
         "readseq,readreverse")
MIXED = ("readwhilewriting:write_rate=20000,seekrandomwhilewriting:write_rate=20000:seek_nexts=10,"
         "readrandomwriterandom:readwritepercent=50")
LONG_READS = "readrandom,readmissing,seekrandom,seekrandom:seek_nexts=50:ops=2000,readseq"
YCSB_LOAD = "ycsbload,flush,waitidle,warm"
# The order that YCSB's authors recommend: E, which adds records, begins with a new load. Before that it runs once on
# the store that the others have left.
YCSB = f"{YCSB_LOAD},ycsba,ycsbb,ycsbc,ycsbf,ycsbd,ycsbe,{YCSB_LOAD},ycsbe"
SCENARIOS = {
    # all of it fits in a machine's memory and in the cache
    "fits": {
        "num": 1_000_000, "key_size": 16, "value_size": 120, "cache_mb": 256, "memtable_mb": 64, "ops": 300_000,
        "benchmarks": f"fillseq,fillrandom,flush,waitidle,warm,{READS},{MIXED},overwrite,{YCSB}",
    },
    # the same in a few minutes: the table on the first page
    "short": {
        "num": 1_000_000, "key_size": 16, "value_size": 120, "cache_mb": 256, "memtable_mb": 64, "ops": 300_000,
        "benchmarks": "fillrandom,flush,waitidle,warm,readrandom,readmissing,multireadrandom,seekrandom,"
                      f"seekrandom:seek_nexts=50,readseq,readreverse,{YCSB_LOAD},ycsba,ycsbb,ycsbe",
    },
    # several times the cache
    "large": {
        "num": 10_000_000, "key_size": 16, "value_size": 120, "cache_mb": 256, "memtable_mb": 128, "ops": 300_000,
        "benchmarks": f"fillrandom,flush,waitidle,{READS},{MIXED},overwrite,waitidle,{YCSB}",
    },
    # a memtable so small that a store is made of many flushes, and written over once
    "many-runs": {
        "num": 1_000_000, "key_size": 16, "value_size": 120, "cache_mb": 256, "memtable_mb": 8, "ops": 300_000,
        "benchmarks": f"fillrandom,overwrite:ops=1000000,flush,waitidle,warm,{READS}",
    },
    # long keys: of 60 KB, of 8 KB with 16 prefixes that leave 16 bytes, and each a prefix of the next, 30 KB on average
    **{
        f"keys-{shape}": {
            "num": num, "key_shape": shape, "key_size": key_size, "value_size": 100, "cache_mb": 256,
            "memtable_mb": 64, "ops": 10_000,
            "benchmarks": f"fillrandom,{LONG_READS},overwrite,flush,waitidle,warm,{LONG_READS}",
        } for shape, num, key_size in [("long", 30_000, 60_000), ("prefix", 200_000, 8_208), ("nested", 60_000, 60_000)]
    },
    # long values, a load in random order written over once; a cache for a fifth of the data
    **{
        f"values-{name}": {
            "num": num, "key_size": 16, "value_size": size, "blob_size": 1024, "cache_mb": 64, "memtable_mb": 32,
            "ops": ops,
            "benchmarks": f"fillrandom,overwrite:ops={num},flush,waitidle,warm,readrandom,"
                          f"seekrandom:ops={ops // 20}:seek_nexts=50",
        } for name, size, num, ops in [("1k", 1 << 10, 320_000, 100_000), ("4k", 4 << 10, 80_000, 40_000),
                                       ("16k", 16 << 10, 20_000, 20_000), ("64k", 64 << 10, 5_000, 5_000),
                                       ("1m", 1 << 20, 320, 1_000)]
    },
    # to see that everything runs
    "tiny": {
        "num": 20_000, "key_size": 16, "value_size": 120, "cache_mb": 8, "memtable_mb": 4, "ops": 5_000,
        "benchmarks": f"fillseq,fillrandom,flush,waitidle,warm,{READS},{MIXED},overwrite,{YCSB}",
    },
}
STEPS = {"flush", "waitidle", "warm", "compact", "reopen", "stats"}


def engines_built():
    out = subprocess.run([ROOT / "xdbbench.out", "--help"], capture_output=True, text=True, check=True).stdout
    lines = out.split("engines:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines]


class Failed(Exception):
    """xdbbench.out did not end well. `rows`: those of what it had done."""

    def __init__(self, text, rows):
        super().__init__(text)
        self.rows = rows


def run(engine, db_parent, flags, enter=None, more_env=None, keep=False):
    """One engine's rows. The process calls `enter` before it becomes the program. keep: the stores are in db_parent
    itself, and stay."""
    name, _, library = engine.partition("@")
    db = db_parent if keep else tempfile.mkdtemp(prefix="xdbbench-", dir=db_parent)
    path = os.path.join(db, "figures.csv")
    env = {**os.environ, **(more_env or {})}
    if library:
        env["LD_LIBRARY_PATH"] = env["DYLD_LIBRARY_PATH"] = os.path.abspath(library)
    command = [ROOT / "xdbbench.out", f"--engine={name}", f"--db={db}", f"--csv={path}", *flags]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=enter)
        rows = []
        if os.path.exists(path):
            with open(path, newline="") as f:
                rows = [dict(row, engine=engine) for row in csv.DictReader(f)]
        if done.returncode:
            raise Failed(f"{engine}: xdbbench.out ended with {done.returncode}\n{done.stdout}{done.stderr}", rows)
        return rows
    finally:
        if keep:
            pathlib.Path(path).unlink(missing_ok=True)
        else:
            shutil.rmtree(db, ignore_errors=True)


def number_repeats(rows):
    seen = {}
    for row in rows:  # a benchmark that is run twice gets a number
        n = seen[row["benchmark"]] = seen.get(row["benchmark"], 0) + 1
        if n > 1:
            row["benchmark"] += f" ({n})"
    return rows


def medians(rows, engines):
    """{benchmark: {engine: {column: median over the rounds}}}, benchmarks in the order they ran."""
    groups = {}
    for row in rows:
        groups.setdefault(row["benchmark"], {}).setdefault(row["engine"], []).append(row)
    out = {}
    for benchmark, by_engine in groups.items():
        out[benchmark] = {}
        for engine in engines:
            if engine not in by_engine:
                continue
            columns = {}
            for column in by_engine[engine][0]:
                try:
                    columns[column] = statistics.median(float(r[column]) for r in by_engine[engine])
                except ValueError:
                    pass
            columns["cpu_us"] = 1e6 * columns["thread_cpu_s"] / columns["ops"] if columns["ops"] else 0
            rates = [float(r["ops_per_s"]) for r in by_engine[engine]]
            columns["spread"] = (max(rates) - min(rates)) / columns["ops_per_s"] if columns["ops_per_s"] else 0
            out[benchmark][engine] = columns
    return out


def is_step(benchmark):
    return benchmark.split(" ")[0].split(":")[0] in STEPS


def short(n):
    return f"{n / 1e6:.2f}M" if n >= 1e6 else f"{n / 1e3:.1f}k" if n >= 1e4 else f"{n:.0f}"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
                     + ["| " + " | ".join(r) + " |" for r in rows]) + "\n"


def figures(m, engines, column, form, steps=False):
    rows = []
    for benchmark, by_engine in m.items():
        if is_step(benchmark) != steps:
            continue
        values = [by_engine.get(e, {}).get(column) for e in engines]
        if any(values):
            rows.append([benchmark] + ["" if v is None else form(v) for v in values])
    return table(["benchmark", *engines], rows) if rows else "(none)\n"


def ratios(m, first, others, column, ratio):
    rows = []
    for benchmark, by_engine in m.items():
        mine = by_engine.get(first, {}).get(column)
        if is_step(benchmark) or not mine:
            continue
        theirs = [by_engine.get(e, {}).get(column) for e in others]
        rows.append([benchmark] + [f"{ratio(mine, v):.2f}" if v else "" for v in theirs])
    return table(["benchmark", *others], rows)


def markdown(m, engines, versions, args, flags):
    first, others = engines[0], engines[1:]
    out = [f"# xdbbench, scenario {args.scenario}\n",
           f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} processors, "
           f"{platform.system()} {platform.release()}; "
           f"medians of {args.rounds} rounds, engines taking turns.\n",
           ", ".join(f"{e} {versions[e]}" for e in engines) + "\n", "`" + " ".join(flags) + "`\n",
           "## Operations per second\n", figures(m, engines, "ops_per_s", short)]
    if others:
        out += [f"## {first}, times as fast as\n", ratios(m, first, others, "ops_per_s", lambda mine,
                                                          other: mine / other),
                f"## {first}, times as fast by processor time of the measuring threads\n",
                ratios(m, first, others, "cpu_us", lambda mine, other: other / mine)]
    us = lambda v: f"{v:.2f}" if v < 100 else f"{v:.0f}"  # noqa: E731
    ratio = lambda v: f"{v:.2f}"  # noqa: E731
    mb = lambda v: f"{v / 1e6:.0f}"  # noqa: E731
    for title, column, form in [
        ("Processor time of the measuring threads, microseconds per operation", "cpu_us", us),
        ("Reads: 99% took at most, microseconds", "read_p99_us", us),
        ("Writes: 99% took at most, microseconds", "write_p99_us", us),
        ("Longest write, microseconds", "write_max_us", us),
        ("Bytes written to storage by byte put, since the store was made", "write_amp_total", ratio),
        ("Bytes on disk by byte of keys and values", "space_amp", ratio), ("Memory at its peak, MB", "rss_peak", mb),
        ("Memory of its own afterwards, MB", "rss_anon", mb),
        ("Processor time of all threads, seconds", "cpu_s", ratio),
        ("Spread of operations per second over the rounds, by the median", "spread", ratio),
    ]:
        out += [f"## {title}\n", figures(m, engines, column, form)]
    out += ["## Seconds of the steps between\n", figures(m, engines, "seconds", lambda v: f"{v:.3f}", steps=True)]
    return "\n".join(out)


def svg(m, engines, title):
    """Bars of operations per second; in each benchmark the fastest engine's is full length."""
    colours = ["#1f6fb4", "#e07b26", "#4d9f4d", "#8a63b8", "#b8494f", "#777777"]
    rows = [(b, e) for b, e in m.items() if not is_step(b)]
    left, width, bar, gap = 330, 520, 11, 9
    height = 60 + sum(len(e) * bar + gap for _, e in rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
           'font-family="sans-serif" font-size="10">',
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="10" y="20" font-size="14">{title}</text>']
    x = 10
    for i, engine in enumerate(engines):
        out.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colours[i % len(colours)]}"/>'
                   f'<text x="{x + 14}" y="39">{engine}</text>')
        x += 30 + 7 * len(engine)
    y = 55
    for benchmark, by_engine in rows:
        most = max(c["ops_per_s"] for c in by_engine.values()) or 1
        out.append(f'<text x="{left - 8}" y="{y + len(by_engine) * bar / 2 + 4:.0f}" '
                   f'text-anchor="end">{benchmark}</text>')
        for engine, columns in by_engine.items():
            w = width * columns["ops_per_s"] / most
            out.append(f'<rect x="{left}" y="{y}" width="{w:.1f}" height="{bar - 1}" '
                       f'fill="{colours[engines.index(engine) % len(colours)]}"/>'
                       f'<text x="{left + w + 4:.1f}" y="{y + bar - 2}">{short(columns["ops_per_s"])}</text>')
            y += bar
        y += gap
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", choices=SCENARIOS, default="fits")
    parser.add_argument("--engines",
                        help="separated by commas; the ratios are of the first (all that xdbbench.out has)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--db", default=os.environ.get("TMPDIR") or tempfile.gettempdir(), help="where the stores go")
    parser.add_argument("--out", default=ROOT / "bench" / "results", type=pathlib.Path)
    parser.add_argument("flags", nargs="*", help="of xdbbench.out, after --; they come after the scenario's own")
    args = parser.parse_args()
    built = engines_built()
    engines = args.engines.split(",") if args.engines else built
    for engine in engines:
        if engine.partition("@")[0] not in built:
            parser.error(f"xdbbench.out was built without {engine}; make bench-deps installs the other stores")
        library = engine.partition("@")[2]
        if "@" in engine and not list(pathlib.Path(library).glob("libremixdb.*")):
            parser.error(f"{engine}: there is no libremixdb in {library or 'an empty name'}")
    if args.rounds < 1:
        parser.error("rounds: at least one")
    try:
        args.out.mkdir(parents=True, exist_ok=True)  # before the rounds, whose figures it is for
    except OSError as e:
        parser.error(f"out: {e}")
    os.makedirs(args.db, exist_ok=True)
    flags = [f"--{k}={v}" for k, v in SCENARIOS[args.scenario].items()] + args.flags
    rows = []
    for round_nr in range(args.rounds):
        turn = round_nr % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            print(f"round {round_nr + 1} of {args.rounds}: {engine}", flush=True)
            try:
                found = run(engine, args.db, flags)
            except Failed as e:
                sys.exit(f"bench.py: {e}")
            rows += [dict(row, round=round_nr + 1) for row in number_repeats(found)]
    m = medians(rows, engines)
    versions = {r["engine"]: r["version"] for r in rows}
    columns = ["engine", "round"] + [c for c in rows[0] if c not in ("engine", "round")]
    with open(args.out / f"{args.scenario}.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, columns)
        writer.writeheader()
        writer.writerows(rows)
    text = markdown(m, engines, versions, args, flags)
    (args.out / f"{args.scenario}.md").write_text(text)
    title = f"xdbbench, scenario {args.scenario}: operations per second"
    (args.out / f"{args.scenario}.svg").write_text(svg(m, engines, title))
    print(text)
    print(f"written: {args.out}/{args.scenario}.md, .csv, .svg")


if __name__ == "__main__":
    main()
