# SPDX-License-Identifier: Apache-2.0
"""xdbbench.out: every benchmark runs on a small store, what it reports adds up, and a wrong or missing value ends it
with 1."""

import csv
import fcntl
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "xdbbench.out"
NUM, OPS = 3000, 500
DISK = {"diskread", "diskbatch", "diskseq"}  # of no store
SMALL = [f"--num={NUM}", f"--ops={OPS}", "--cache_mb=4", "--memtable_mb=2", "--value_size=40", "--verify=full"]


def bench(db, *flags, status=0):
    done = subprocess.run([PROGRAM, f"--db={db}", *SMALL, *flags], capture_output=True, text=True, timeout=1100)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def names():
    """The benchmarks, as the program's help lists them."""
    text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, timeout=1100, check=True).stdout
    lines = text.split("benchmarks:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines]


def rows(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def test_every_benchmark_runs(tmp_path):
    figures = tmp_path / "figures.csv"
    order = [n for n in names() if n.startswith("fill")] + ["ycsbload"]
    order = ["fillsync", "fillseq", "fillwhilereading", "fillrandom",
             *[n for n in names() if n not in order and not n.startswith("ycsb") and n not in {"deleterandom", *DISK}]]
    order += ["deleterandom", "readrandom", "readseq", "ycsbload",
              *[n for n in names() if n.startswith("ycsb") and n != "ycsbload"], "readseq"]
    assert set(order) == set(names()) - DISK
    bench(tmp_path / "db", f"--csv={figures}", "--benchmarks=" + ",".join(order))
    done = rows(figures)
    for row in done:
        assert row["engine"] == "remixdb" and row["failures"] == "0"
    by_name = {row["benchmark"]: row for row in done}
    for fill in ("fillseq", "fillrandom", "ycsbload"):
        assert int(by_name[fill]["writes"]) == NUM
        assert int(by_name[fill]["user_written_bytes"]) == NUM * (16 + 40)
    assert int(by_name["readmissing"]["missed"]) == OPS
    assert int(by_name["seekrandom"]["records"]) == OPS
    assert 0 < int(by_name["deleterandom"]["writes"]) == OPS
    scans = [row for row in done if row["benchmark"] == "readseq"]
    assert int(scans[0]["records"]) == NUM
    assert NUM - OPS <= int(scans[1]["records"]) < NUM                     # after the deletes
    assert int(scans[2]["records"]) == NUM + 2 * (OPS // 20)               # after the inserts of D and E
    assert int(by_name["ycsbf"]["reads"]) == OPS and 0 < int(by_name["ycsbf"]["writes"]) < OPS


def test_threads_and_parameters(tmp_path):
    figures = tmp_path / "figures.csv"
    list_ = ("fillrandom:threads=2,readrandom:threads=3:distribution=zipfian,seekrandom:seek_nexts=20,"
             "seekrandom:seek_missing,readwhilewriting:threads=2:write_rate=10000,multireadrandom:batch_size=7,"
             "overwrite:batch_size=10,ycsba:threads=2,ycsbd:threads=3,ycsbe:threads=2,readseq,readreverse:threads=2,"
             "reopen,readseq,readrandomwriterandom:readwritepercent=0")
    bench(tmp_path / "db", f"--csv={figures}", f"--benchmarks={list_}", "--histogram", "--key_size=24")
    done = {row["benchmark"]: row for row in rows(figures)}
    assert int(done["readrandom:threads=3:distribution=zipfian"]["ops"]) == 3 * OPS
    assert int(done["seekrandom:seek_nexts=20"]["records"]) > 20 * OPS
    assert float(done["readwhilewriting:threads=2:write_rate=10000"]["side_ops_per_s"]) > 0
    assert int(done["readseq"]["records"]) == NUM + 3 * (OPS // 20) + 2 * (OPS // 20)
    assert int(done["readreverse:threads=2"]["records"]) == 2 * int(done["readseq"]["records"])  # each thread reads all
    assert int(done["readrandomwriterandom:readwritepercent=0"]["writes"]) == OPS


def test_the_largest_batches(tmp_path):
    list_ = "fillrandom,overwrite,multireadrandom:batch_size=256"
    assert 'multireadrandom:batch_size is "1000"' in bench(tmp_path / "db", "--batch_size=1000",
                                                           "--benchmarks=fillrandom,multireadrandom", status=2).stderr
    bench(tmp_path / "db", "--batch_size=1000", f"--benchmarks={list_}")


def test_keys_of_eight_bytes_and_large_values(tmp_path):
    bench(tmp_path / "db", "--key_size=8", "--value_size=5000",
          "--benchmarks=fillseq,readseq,readreverse,readrandom,readmissing")


@pytest.mark.parametrize("benchmark", ["readrandom", "readseq", "seekrandom", "multireadrandom", "ycsbc", "ycsbe"])
def test_wrong_values_end_it_with_1(tmp_path, benchmark):
    """A store filled with the keys of one seed does not hold those of another, and values that are no function of
    their keys are wrong."""
    bench(tmp_path / "db", "--keep", "--benchmarks=fillrandom")
    bench(tmp_path / "db", "--use_existing_db", f"--benchmarks={benchmark}")
    if benchmark != "readseq":
        done = bench(tmp_path / "db", "--use_existing_db", "--seed=2", f"--benchmarks={benchmark}", status=1)
        assert "wrong or missing values" in done.stderr
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from xdb import Xdb
with Xdb({str(tmp_path / "db" / "remixdb")!r}, cachesz=4, mtsz=2) as db, db.ref() as ref:
    with ref.iter() as it:
        pairs = list(it)
    for (key, _), (_, value) in zip(pairs, pairs[1:]):
        ref.put(key, value)
    ref.sync()
"""
    subprocess.run(["python3", "-c", script], check=True, timeout=1100)
    done = bench(tmp_path / "db", "--use_existing_db", f"--benchmarks={benchmark}", status=1)
    assert "a wrong value" in done.stderr


def test_lost_records_end_it_with_1(tmp_path):
    bench(tmp_path / "db", "--keep", "--benchmarks=fillrandom,deleterandom")
    for benchmark in ("readseq", "readrandom", "seekrandom:seek_nexts=30"):
        bench(tmp_path / "db", "--use_existing_db", f"--benchmarks={benchmark}", status=1)
        bench(tmp_path / "db", "--use_existing_db", "--may_miss", f"--benchmarks={benchmark}")


@pytest.mark.parametrize("flag, told", [
    ("--nosuch=1", 'no flag "--nosuch"'), ("-x", 'no flag "-x"'), ("fillseq", 'no flag "fillseq"'),
    ("sync", 'no flag "sync"'), ("--", 'no flag "--"'),
    ("--num", "--num has no value; a number from 1 to 4294967295 is needed"),
    ("--num=0", '--num is "0"; a number from 1 to 4294967295 is needed'),
    *[(f"--num={n}", f'--num is "{n}"; a number') for n in ("", "x", "-1", "10k", "1.5", " 1", "99999999999999999999")],
    ("--key_size=60001", '--key_size is "60001"; a number from 8 to 60000 is needed'),
    ("--sync=yes", '--sync is "yes"; 0 or 1 is needed'),
    *[(f"--zipf_theta={n}", f'--zipf_theta is "{n}"; a number above 0 and below 1 is needed')
      for n in ("", "0", "1", "nan", "0.5x")],
    ("--distribution=normal", '--distribution is "normal"; uniform or zipfian is needed'),
    ("--verify=no", '--verify is "no"; ends or full is needed'),
    ("--compression=gzip", '--compression is "gzip"; none, zstd, lz4 or snappy is needed'),
    ("--io=fast", '--io is "fast"; auto, uring, aio or sync is needed'),
    ("--drop=all", '--drop is "all"; files or system is needed'),
    ("--benchmarks=diskread:depth=0", 'diskread:depth is "0"; a number from 1 to 256 is needed'),
    ("--benchmarks=diskbatch:batch_size=257", 'diskbatch:batch_size is "257"; a number up to 256 is needed'),
    ("--engine=nosuch", '--engine is "nosuch"; remixdb'),
    ("--db=", '--db is ""; a directory is needed'), ("--csv=", '--csv is ""; a file is needed'),
    ("--db=/dev/null", '--db is "/dev/null", which is no directory'),
    ("--db=/dev/null/none", '--db is "/dev/null/none", which cannot be made: Not a directory'),
    ("--csv=/dev/null/none", '--csv is "/dev/null/none", which cannot be written: Not a directory'),
    ("--benchmarks", "--benchmarks has no value; a list such as"),
    ("--benchmarks=", '--benchmarks is ""; a list such as'),
    *[(f"--benchmarks={b}", f'--benchmarks is "{b}"; there has to be a name')
      for b in (",", "fillseq,,readseq", ",fillseq", "fillseq,")],
    ("--benchmarks=fillseq, readseq", 'no benchmark " readseq"'), ("--benchmarks=:ops=5", 'no benchmark ""'),
    ("--benchmarks=readrandom:nosuch=1", 'no flag "readrandom:nosuch"'),
    ("--benchmarks=readrandom:", 'no flag "readrandom:"'),
    ("--benchmarks=readrandom:num=5", "readrandom:num is of a whole run"),
    ("--benchmarks=fillseq,readrandom:threads=0", 'readrandom:threads is "0"; a number from 1 to 1024 is needed'),
    ("--benchmarks=readrandom:ops", "readrandom:ops has no value; a number from 0 to"),
    ("--benchmarks=fillseq,multireadrandom:batch_size=257",
     'multireadrandom:batch_size is "257"; a number up to 256 is needed'),
    ("--benchmarks=" + "x" * 2000, "is too long"),
])
def test_wrong_flags_end_it_with_2(tmp_path, flag, told):
    """And what is there is left as it was."""
    store = tmp_path / "db" / "remixdb"
    store.mkdir(parents=True)
    (tmp_path / "db" / ".xdbbench").write_text("")
    (store / "precious").write_text("kept")
    done = bench(tmp_path / "db", flag, status=2)
    assert done.stdout == "" and told in done.stderr and len(done.stderr.splitlines()) == 1
    assert (store / "precious").read_text() == "kept"


def test_a_directory_of_others_is_left_alone(tmp_path):
    store = tmp_path / "db" / "remixdb"
    store.mkdir(parents=True)
    (store / "precious").write_text("kept")
    bench(tmp_path / "db", "--benchmarks=fillseq", status=2)
    assert (store / "precious").read_text() == "kept"


def test_a_directory_in_use_is_left_alone(tmp_path):
    bench(tmp_path / "db", "--keep", "--benchmarks=fillseq")
    with open(tmp_path / "db" / ".xdbbench") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "in use" in bench(tmp_path / "db", "--benchmarks=fillseq", status=2).stderr
    bench(tmp_path / "db", "--use_existing_db", "--benchmarks=readseq")


def test_scans_backwards(tmp_path):
    figures = tmp_path / "figures.csv"
    list_ = ("fillrandom,seekrandom:backwards:seek_nexts=50,seekrandom:backwards:seek_missing:seek_nexts=3,compact,"
             "seekrandom:backwards:seek_nexts=50,overwrite,seekrandom:backwards:seek_nexts=50")
    bench(tmp_path / "db", f"--csv={figures}", f"--benchmarks={list_}")
    by_name = {row["benchmark"]: row for row in rows(figures)}
    assert int(by_name["seekrandom:backwards:seek_missing:seek_nexts=3"]["records"]) > 3 * OPS
    bench(tmp_path / "db", "--keep", "--benchmarks=fillrandom,deleterandom")
    done = bench(tmp_path / "db", "--use_existing_db", "--benchmarks=seekrandom:backwards:seek_nexts=9", status=1)
    assert "a scan left out a record" in done.stderr


def test_reads_beside_a_filling(tmp_path):
    figures = tmp_path / "figures.csv"
    bench(tmp_path / "db", f"--csv={figures}", "--num=100000", "--drawn_ahead=256",
          "--benchmarks=fillwhilereading:read_rate=100000,readseq")
    filling, all_ = rows(figures)
    assert int(filling["writes"]) == int(all_["records"]) == 100000
    assert int(filling["reads"]) > 0 and float(filling["side_ops_per_s"]) > 0


def test_the_room_of_a_filling_is_watched(tmp_path):
    figures = tmp_path / "figures.csv"
    done = bench(tmp_path / "db", f"--csv={figures}", "--num=400000", "--memtable_mb=1", "--cache_mb=1",
                 "--benchmarks=fillrandom:room_from=8,fillrandom,fillrandom:room_from=1000,overwrite:room_from=8")
    most = [float(row["room_most"]) for row in rows(figures)]
    assert 1 < most[0] < 10 and most[1:] == [0, 0, 0]
    assert done.stdout.count("of what was put") == 1


def test_few_operations_are_drawn_ahead(tmp_path):
    """They are the same operations."""
    for ahead in (256, 1 << 20):
        figures = tmp_path / f"{ahead}.csv"
        bench(tmp_path / "db", f"--csv={figures}", f"--drawn_ahead={ahead}", "--ops=3000",
              "--benchmarks=fillrandom,readrandom,multireadrandom:batch_size=100,ycsbd,readseq")
        done = {row["benchmark"]: row for row in rows(figures)}
        assert [done[n]["records"] for n in ("readrandom", "multireadrandom:batch_size=100", "readseq")] == [
            "3000", "3000", str(NUM + 3000 // 20)]


def test_what_is_counted(tmp_path):
    figures = tmp_path / "figures.csv"
    bench(tmp_path / "db", f"--csv={figures}", "--num=50000", "--cache_mb=0", "--benchmarks=fillrandom,flush,waitidle,"
          "dropcaches,readrandom,reopen")
    row = rows(figures)[4]
    assert row["benchmark"] == "readrandom" and int(row["own_reads"]) >= OPS * 9 // 10
    assert int(row["own_read_bytes"]) >= (16 + 40) * int(row["own_reads"])
    for column in ("user_s", "system_s", "thread_user_s", "thread_system_s"):
        assert float(row[column]) >= 0
    assert float(row["thread_cpu_s"]) > 0 and int(row["waits"]) >= 0


def test_files_leave_the_page_cache(tmp_path):
    """Where the disk's transfers are counted, as of no file system in memory."""
    figures = tmp_path / "figures.csv"
    bench(tmp_path / "db", f"--csv={figures}", "--num=50000", "--cache_mb=0", "--benchmarks=fillrandom,flush,waitidle,"
          "readrandom,dropcaches,readrandom")
    warm, cold = [row for row in rows(figures) if row["benchmark"] == "readrandom"]
    if not warm["disk_reads"]:
        pytest.skip("nothing counts the transfers of the disk of this directory")
    assert int(cold["read_bytes"]) > int(warm["read_bytes"]) and int(cold["disk_reads"]) > 0


def test_the_disk_itself(tmp_path):
    figures = tmp_path / "figures.csv"
    list_ = "diskread,diskread:depth=64,diskbatch:batch_size=10,diskseq,diskseq:depth=4"
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT))
    except (AttributeError, OSError):
        assert "disk" in bench(tmp_path / "db", f"--benchmarks={list_}", status=1).stderr
        return
    done = bench(tmp_path / "db", f"--csv={figures}", "--num=100000", f"--benchmarks={list_}")
    assert not (tmp_path / "db" / "disk").exists() and not (tmp_path / "db" / "remixdb").exists()
    if "does not do this" in done.stdout:
        pytest.skip("there is no io_uring")
    by_name = {row["benchmark"]: row for row in rows(figures)}
    for name in ("diskread", "diskread:depth=64", "diskbatch:batch_size=10"):
        assert int(by_name[name]["ops"]) == OPS and int(by_name[name]["user_read_bytes"]) == OPS * 4096
    size = 100000 * 56 // 4096 * 4096
    for name in ("diskseq", "diskseq:depth=4"):
        assert int(by_name[name]["user_read_bytes"]) == size and int(by_name[name]["ops"]) == -(-size // (1 << 20))


def test_what_is_timed(tmp_path):
    """Of what only writes every operation, else one in 16."""
    out = bench(tmp_path / "db", "--num=3200", "--ops=3200",
                "--benchmarks=fillrandom,overwrite,readrandom,readrandomwriterandom:readwritepercent=50")
    timed = [int(n) for n in re.findall(r"\((\d+) timed\)", out.stdout)]
    assert timed[:3] == [3200, 3200, 200] and sum(timed[3:]) == 200
