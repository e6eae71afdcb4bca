# SPDX-License-Identifier: Apache-2.0
"""tools/bench/bench_cold.py: what runs, what is made of the rows, the tables; and the cgroups of both versions."""

import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import bench  # noqa: E402
import bench_cold as cold  # noqa: E402
import cgroup  # noqa: E402

ROW = {
    "engine": "remixdb", "benchmark": "readrandom:ops=100", "ops": "200", "seconds": "0.5", "threads": "1",
    "reads": "200", "writes": "0", "read_p50_us": "80.5", "read_p99_us": "300", "write_p50_us": "0",
    "write_p99_us": "0", "write_max_us": "0", "disk_reads": "220", "disk_read_bytes": str(220 * 4096),
    "read_bytes": str(210 * 4096), "waits": "205", "cpu_s": "0.5", "own_reads": "198",
    "own_read_bytes": str(198 * 4096), "own_trips": "", "user_s": "0.002", "system_s": "0.006", "write_bytes": "0",
    "rss_anon": "50000000",
}
GET = cold.Step("readrandom:ops=100", "loaded", "get")


def made(engine, rate_factor=1.0, state="loaded", operation="get", round_nr=1, **changes):
    row = {**ROW, "seconds": str(0.5 / rate_factor), **changes}
    step = cold.Step(row["benchmark"], state, operation)
    return cold.record(step, dict(row, engine=engine), {"round": round_nr, "ratio": 4, "engine": engine})


# ---- what runs

def test_the_plan_has_every_operation_in_every_state():
    steps = cold.plan(1_000_000, 10_000, cold.STATES)
    named = {(s.state, s.name) for s in steps if s.name}
    reads = {"get", "get absent", "seek", "seek absent", "multi_get of 64", "get, 8 threads", "seek + 50 next",
             "seek + 50 prev", "full scan"}
    for state in ("loaded", "compacted"):
        assert reads <= {name for s, name in named if s == state}
    assert {"YCSB A", "YCSB B", "YCSB D", "YCSB F", "YCSB E, first half", "YCSB E, second half"} == {
        name for s, name in named if s == "ycsb"}
    assert {"scans over as many records as there are", "seek + 50 next"} <= {n for s, n in named if s == "scanned"}
    assert any(s.state == "loading" for s in steps)
    scans = next(s for s in steps if s.name == "scans over as many records as there are")
    assert scans.label.endswith(":ops=20000")  # 20,000 scans of 50 are a million records


def test_caches_are_dropped_before_each_pass_and_the_state_is_settled():
    labels = [s.label for s in cold.plan(1000, 300, cold.STATES)]
    for i, label in enumerate(labels):
        if label.startswith(("read", "multi", "seek")):
            assert labels[i - 1] == "dropcaches", label
    for before in ("fillrandom", "compact"):
        assert labels[labels.index(before) + 1] == "waitidle"
    assert "dropcaches" not in [s.label for s in cold.plan(1000, 300, cold.STATES, drop_caches=False)]


def test_states_can_be_chosen():
    assert {s.state for s in cold.plan(1000, 300, ["compacted"])} == {"load", "compacted"}


def test_work_between_the_passes_belongs_to_what_was_before():
    steps = cold.plan(1000, 300, ["scanned"])
    assert [(s.state, s.label.split(":")[0]) for s in steps[:5]] == [
        ("load", "fillrandom"), ("load", "waitidle"), ("load", "dropcaches"), ("scanned", "seekrandom"),
        ("scanned", "waitidle")]


def test_xdbbench_knows_every_step():
    """A wrong label is found before anything runs, and nothing is left behind."""
    steps = cold.disk_plan(300) + cold.plan(1000, 300, cold.STATES)
    list_ = ",".join(s.label for s in steps)
    done = subprocess.run([bench.ROOT / "xdbbench.out", f"--benchmarks={list_}", "--db=/dev/null"],
                          capture_output=True, text=True, timeout=1100)
    assert done.returncode == 2 and "/dev/null" in done.stderr, done.stderr  # the benchmarks are looked at first


def test_rows_are_matched_with_steps():
    steps = [cold.Step("fillrandom", "loaded", "load"), cold.Step("flush"), GET]
    rows = [{"benchmark": "fillrandom"}, {"benchmark": GET.label}]  # an engine that does not flush
    assert [(s.name, r["benchmark"]) for s, r in cold.match(steps, rows)] == [("load", "fillrandom"),
                                                                             ("get", GET.label)]
    with pytest.raises(ValueError):
        list(cold.match(steps, rows + [{"benchmark": "readseq"}]))


# ---- figures

def test_figures_are_by_operation():
    f = cold.derive(GET, ROW)
    assert f["rate"] == 400 and f["mean_us"] == 2500
    assert (f["p50_us"], f["p99_us"]) == (80.5, 300)
    assert f["reads"] == pytest.approx(1.1) and f["kb"] == pytest.approx(4.2)
    assert f["own_reads"] == pytest.approx(0.99) and f["own_kb"] == pytest.approx(3.96)
    assert f["trips"] == pytest.approx(1.025)
    assert f["own_trips"] is None  # not counted, and not 0
    assert (f["user_us"], f["system_us"]) == (pytest.approx(10), pytest.approx(30))


def test_a_multi_get_counts_as_one_operation():
    f = cold.derive(cold.Step("multireadrandom", "loaded", "multi_get of 64", 64), {**ROW, "ops": "640"})
    assert f["rate"] == 20 and f["reads"] == 22


def test_threads_share_the_time():
    assert cold.derive(GET, {**ROW, "threads": "8"})["mean_us"] == 8 * 2500


def test_a_load_tells_of_its_writes_and_a_load_beside_reads_of_those():
    row = {**ROW, "reads": "0", "writes": "200", "write_p50_us": "3", "write_p99_us": "7"}
    assert cold.derive(cold.Step("fillrandom", "loaded", "load"), row)["p99_us"] == 7
    assert cold.derive(cold.Step("fillwhilereading", "loading", "x"), {**row, "reads": "10"})["p99_us"] == 300


def test_others_on_the_disk_are_seen():
    assert not cold.disturbed(ROW)
    assert cold.disturbed({**ROW, "disk_read_bytes": str(210 * 4096 * 3 + (2 << 20))})
    assert not cold.disturbed({**ROW, "disk_read_bytes": ""})  # nothing is known of the disk


def test_an_unknown_disk_is_no_zero():
    f = cold.derive(GET, {**ROW, "disk_reads": "", "disk_read_bytes": ""})
    assert f["reads"] is None and cold.short(f["reads"]) == "-"


def test_records_are_json_with_numbers():
    line = json.loads(json.dumps(made("remixdb")))
    assert line["disk_reads"] == 220 and line["benchmark"] == "readrandom:ops=100" and line["own_trips"] == ""
    assert line["state"] == "loaded" and line["operation"] == "get" and line["round"] == 1


def test_medians_over_rounds():
    records = [made("remixdb", f, round_nr=i) for i, f in enumerate((1, 2, 10))]
    records += [made("rocksdb"), made("remixdb", operation="seek")]
    m = cold.medians(records)
    assert list(m) == [("loaded", "get"), ("loaded", "seek")]
    assert m["loaded", "get"]["remixdb"]["rate"] == 800 and m["loaded", "get"]["rocksdb"]["rate"] == 400
    assert m["loaded", "get"]["remixdb"]["own_trips"] is None


# ---- the limit, and tables

DISK_US = {"disk depth 1": 100, "disk depth 8": 200, "disk depth 64": 800, "disk batch 10": 180, "disk batch 14": 220,
           "disk batch 64": 760, "disk sequential": 1000, "disk sequential depth 4": 900}


def disk():
    rows = [made("disk", state="disk", operation=name, seconds=str(us * 200 / 1e6)) for name, us in DISK_US.items()]
    return {key[1]: by["disk"] for key, by in cold.medians(rows).items()}


@pytest.mark.parametrize("operation, us", [
    ("get", 100), ("seek absent", 100), ("multi_get of 64", 760), ("get, 8 threads", 8 * 200), ("seek + 50 next", 280),
    ("full scan", 1000 * 416 / (1 << 20)), ("load", None), ("get absent", None), ("YCSB A", None)])
def test_limits_of_the_disk(operation, us):
    assert cold.limit_us(operation, disk(), 400) == (us if us is None else pytest.approx(us))
    assert cold.limit_us(operation, {}, 400) is None


def test_the_summary_has_ratios_and_limits():
    records = [made("remixdb", 2), made("rocksdb", 1), made("rocksdb", operation="load")]
    text = cold.summary(cold.medians(records), ["remixdb", "rocksdb"], disk(), 400)
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    assert lines[0] == ["state", "operation", "remixdb, kops (p50, us)", "rocksdb, kops (p50, us)", "/ rocksdb",
                        "limit, us", "remixdb / limit"]
    assert lines[2] == ["loaded", "get", "0.80 (80.5)", "0.40 (80.5)", "2.00", "100", "12.5"]
    assert lines[3] == ["loaded", "load", "-", "0.40 (80.5)", "-", "-", "-"]


def test_the_details_mark_what_is_not_the_engines_own():
    records = [made("remixdb"), made("rocksdb", own_reads="", own_read_bytes="", disk_read_bytes="9000000")]
    text = cold.details(cold.medians(records), ["remixdb", "rocksdb"])
    mine, theirs = text.splitlines()[2:]
    assert "~" not in mine and "| 0.99 |" in mine
    assert "1.10~" in theirs and "| - |" in theirs
    records = [made("remixdb", disk_reads="", disk_read_bytes="9000000")]
    assert "~" not in cold.details(cold.medians(records), ["remixdb"])  # no figure, no mark


def test_totals_count_what_lies_between_the_passes():
    wait = {"benchmark": "waitidle", "ops": "0", "reads": "0"}
    records = []
    for round_nr, written in enumerate((1e6, 3e6, 100e6)):
        records += [made("remixdb", state="load", operation="load", round_nr=round_nr, write_bytes=str(written),
                         write_max_us="5000"),
                    made("remixdb", state="load", operation=None, round_nr=round_nr, write_bytes="2000000", **wait),
                    made("remixdb", round_nr=round_nr),
                    made("remixdb", state="loading", operation=cold.LOADING, round_nr=round_nr, read_p99_us="900")]
    records.append(made("rocksdb"))
    text = cold.totals(records, ["remixdb", "rocksdb"])
    lines = {c[0]: c[1:] for c in ([c.strip() for c in line.strip("|").split("|")] for line in text.splitlines())}
    assert lines["load: MB written"] == ["5.00", "-"] and lines["written in all, MB"] == ["5.00", "0.00"]
    assert lines["longest put of the load, ms"] == ["5.00", "-"]
    assert lines["p99 beside a load / at rest"] == ["3.00", "-"]
    assert lines["processor time in all, s"] == ["2.00", "0.50"]
    assert cold.medians(records).keys() == {("load", "load"), ("loaded", "get"), ("loading", cold.LOADING)}


@pytest.mark.parametrize("value, text", [(None, "-"), (0, "0.00"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"),
                                         (1234.5, "1234")])
def test_three_digits(value, text):
    assert cold.short(value) == text


# ---- parameters

def test_memory_is_a_part_of_the_data():
    _, args = cold.parse(["--records", "1000000"])
    assert args.ratios == [4, 10] and args.ops == 10_000
    four, ten = (cold.memory_of(args, r) for r in args.ratios)
    assert four["limit"] == 416_000_000 // 4 // 4096 * 4096 and ten["limit"] == 41_600_000 // 4096 * 4096
    assert four["cache_mb"] == 20 and four["memtable_mb"] == 5
    _, args = cold.parse(["--memory-mb", "120", "--cache-mb", "24", "--memtable-mb", "6"])
    assert cold.memory_of(args, 0) == {"limit": 120 << 20, "cache_mb": 24, "memtable_mb": 6}


def test_flags_of_the_engines():
    _, args = cold.parse(["--io", "aio", "--direct", "--compression", "zstd", "--drop-caches", "system"])
    memory = cold.memory_of(args, 4)
    flags = cold.flags_of("remixdb", args, memory, [GET])
    assert {"--io=aio", "--direct_io=1", "--compression=zstd", "--drop=system",
            f"--memory_mb={4_160_000_000 // 4 >> 20}"} <= set(flags)
    assert not any(f.startswith("--io") for f in cold.flags_of("rocksdb", args, memory, [GET]))


@pytest.mark.parametrize("argv", [["--ratio", "x"], ["--ratio", "0"], ["--records", "0"], ["--rounds", "0"],
                                  ["--states", "loaded,nosuch"], ["--io", "x"], ["--drop-caches", "x"]])
def test_wrong_parameters(argv, capsys):
    with pytest.raises(SystemExit) as e:
        cold.parse(argv)
    assert e.value.code == 2 and argv[0].lstrip("-") in capsys.readouterr().err


# ---- cgroups

def v1(root, memsw=False):
    (root / "memory").mkdir()
    (root / "memory" / "memory.limit_in_bytes").write_text("max")
    own = root / "own"
    own.write_text("8:memory:/\n0::/\n")
    return own


def v2(root, delegated=True):
    (root / "cgroup.controllers").write_text("cpu memory io")
    (root / "cgroup.subtree_control").write_text("memory" if delegated else "cpu")
    own = root / "own"
    own.write_text("0::/session\n")
    return own


def test_versions_are_told_apart(tmp_path):
    a, b, c = (tmp_path / n for n in "abc")
    for d in (a, b, c):
        d.mkdir()
    assert cgroup.parents(a, v1(a))[0] == a / "memory" and cgroup.version_of(a / "memory") == 1
    assert cgroup.parents(b, v2(b)) == [b] and cgroup.version_of(b) == 2
    (c / "own").write_text("0::/\n")
    assert cgroup.parents(c, c / "own") == []


class MadeGroup(cgroup.Group):
    """On a file system that is no cgroup's, whose files have to be there: as a kernel would make them."""

    def _limit(self, limit):
        for name in (("memory.memsw.limit_in_bytes",) if self.version == 1 else ("memory.swap.max",)):
            (self.path / name).write_text("max")
        super()._limit(limit)


def test_limits_are_set_and_swap_is_off(tmp_path):
    own = v1(tmp_path)
    g = MadeGroup(cgroup.parents(tmp_path, own)[0], 1 << 27, "g")
    assert (g.path / "memory.limit_in_bytes").read_text() == str(1 << 27)
    assert (g.path / "memory.memsw.limit_in_bytes").read_text() == str(1 << 27)
    (g.path / "memory.failcnt").write_text("7\n")
    (g.path / "memory.max_usage_in_bytes").write_text("99\n")
    (g.path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert g.figures() == {"most_bytes": 99, "full": 7, "killed": 1}
    g.enter()
    assert (g.path / "cgroup.procs").read_text() == str(os.getpid())


def test_limits_of_version_2(tmp_path):
    v2(tmp_path, delegated=False)
    g = MadeGroup(tmp_path, 1 << 27, "g")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (g.path / "memory.max").read_text() == str(1 << 27) and (g.path / "memory.swap.max").read_text() == "0"
    (g.path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\n")
    (g.path / "memory.peak").write_text("5\n")
    assert g.figures() == {"most_bytes": 5, "full": 12, "killed": 2}


def test_a_group_that_is_busy_for_a_moment_is_removed(monkeypatch):
    class Busy:
        calls = 0

        def __truediv__(self, name):
            return pathlib.Path("/nosuch") / name

        def rmdir(self):
            Busy.calls += 1
            if Busy.calls < 3:
                raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(cgroup, "LOOK_SECONDS", 0)
    group = cgroup.Group.__new__(cgroup.Group)
    group.path = Busy()
    group.remove()
    assert Busy.calls == 3
    Busy.calls = -cgroup.LOOKS
    with pytest.raises(OSError):
        group.remove()


def test_without_a_memory_controller_it_says_what_is_needed(tmp_path):
    with pytest.raises(cgroup.Refused, match="as root.*--cgroup.*no memory controller"):
        cgroup.make(1 << 27, root=tmp_path)
    with pytest.raises(cgroup.Refused, match="nosuch: no memory controller"):
        cgroup.make(1 << 27, tmp_path / "nosuch")


def test_a_directory_that_may_not_be_written_to_is_told(tmp_path):
    v1(tmp_path)
    (tmp_path / "memory" / f"xdbbench-{os.getpid()}").mkdir()  # in the way
    with pytest.raises(cgroup.Refused, match=f"xdbbench-{os.getpid()}: File exists"):
        cgroup.make(1 << 27, tmp_path / "memory")


class NoGroup:
    """In place of a cgroup: the process runs free, and the kernel says what it did."""

    def __init__(self, killed):
        self.killed = killed

    def enter(self):
        pass

    def figures(self):
        return {"most_bytes": 0, "full": 0, "killed": self.killed}

    def remove(self):
        pass


@pytest.mark.parametrize("killed", [0, 1])
def test_what_was_done_before_a_failure_counts(tmp_path, monkeypatch, killed):
    monkeypatch.setattr(cold.cgroup, "make", lambda limit, directory: NoGroup(killed))
    _, args = cold.parse(["--records", "3000", "--value", "100", "--memory-mb", "64", "--db", str(tmp_path)])
    steps = [cold.Step("fillrandom", "load", "load"), cold.Step("ycsbd:ops=100000", "ycsb", "more than there is room")]
    records, failure = cold.run_in_group("remixdb", "remixdb", args, cold.memory_of(args, 0), steps, {"round": 1})
    assert [r["operation"] for r in records] == ["load"] and "leaves room for" in failure
    assert ("64 MiB are too little" in failure) == bool(killed)
    assert records[0]["memory"]["killed"] == killed


def may_limit():
    try:
        cgroup.make(1 << 27).remove()
        return True
    except cgroup.Refused:
        return False


def direct_reads(directory):
    path = directory / "direct"
    path.write_bytes(bytes(4096))
    try:
        os.close(os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0)))
        return hasattr(os, "O_DIRECT")
    except OSError:
        return False


def test_it_runs(tmp_path):
    """The whole of it, small: every state, the tables and the lines."""
    if not direct_reads(tmp_path):
        pytest.skip("the directory of the tests has no direct I/O")
    command = [sys.executable, ROOT / "tools" / "bench" / "bench_cold.py", "--records", "3000", "--value", "100",
               "--memory-mb", "512", "--cache-mb", "4", "--memtable-mb", "2", "--rounds", "1", "--ops", "300",
               "--engines", "remixdb", "--db", tmp_path / "db", "--out", tmp_path / "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stdout, stderr = process.communicate(timeout=1100)
    if not may_limit():
        assert process.returncode == 1 and cgroup.NEEDS in stderr
        pytest.skip("this process may not make a memory cgroup")
    assert process.returncode == 0, stdout + stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "512MiB" / "remixdb-1.jsonl").read_text().splitlines()]
    assert {line["state"] for line in lines} == {"load", *cold.STATES}
    assert all(line["failures"] == 0 for line in lines)
    by = {(line["state"], line["operation"]): line for line in lines}
    assert by["load", "load"]["writes"] == 3000 and by["loaded", "get absent"]["missed"] == 300
    assert by["loaded", "get"]["own_reads"] != ""
    assert by["loaded", "seek + 50 prev"]["records"] > 300 / 4
    text = (tmp_path / "out" / "512MiB" / "summary.md").read_text()
    assert text in stdout and "| compacted | full scan |" in text and "p99 beside a load / at rest" in text
    assert not list(cgroup.ROOT.glob(f"**/xdbbench-{process.pid}"))
    assert list((tmp_path / "db").iterdir()) == []
