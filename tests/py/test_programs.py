# SPDX-License-Identifier: Apache-2.0
"""The programs: what they say to wrong arguments, and that they leave alone what is not theirs; the commands of
remixdb on a store."""

import contextlib
import gzip
import json
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import xdb  # noqa: E402


def run(program, *args, status=0, **env):
    done = subprocess.run([ROOT / f"{program}.out", *map(str, args)], capture_output=True, text=True, timeout=1100,
                          env={**os.environ, **env})
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("program", ["remixdb", "xdbdemo", "xdbtest", "xdbexit", "xdbbench"])
def test_help_and_wrong_arguments(program):
    for flag in ("--help", "-h"):
        told = run(program, flag)
        assert told.stdout.startswith("usage: ") and told.stderr == ""
    assert run(program, "--nosuch", status=2).stdout == ""
    told = run(program, "--version")
    assert told.stdout == f"{program} {xdb.version()}\n" and told.stderr == ""


@pytest.mark.parametrize("program, args, env, part", [
    ("xdbtest", (1, 4, 99, 5), {}, 'DATA_POWER is "99"; a number from 0 to 31 is needed'),
    ("xdbtest", ("x", 4, 10, 5), {}, 'CACHE_MB is "x"; a number from 0 to 16777216 is needed'),
    ("xdbtest", (1, 4, 10, 5, 0), {}, 'EPOCHS is "0"; a number from 1 to'),
    ("xdbtest", (1, 4, 10, 5, 1), {"THREADS": "x"}, 'THREADS is "x"; a number from 1 to 1024 is needed'),
    ("xdbtest", (1, 4, 10), {}, "5 or 6 arguments are needed, and 4 were given"),
    ("xdbtest", (1, 4, 10, 5, 1, 1), {}, "and 7 were given"),
    ("xdbexit", ("x", 4), {}, 'CACHE_MB is "x"; a number from 0 to 16777216 is needed'),
    ("xdbexit", ("", 4), {}, 'CACHE_MB is ""; a number'),
    ("xdbexit", (1, -4), {}, 'MT_MB is "-4"; a number'),
    ("xdbexit", (1, 99999999), {}, 'MT_MB is "99999999"; a number from 0 to 16777216 is needed'),
    ("xdbexit", (1, 4, "--kill"), {"SEED": "x"}, 'SEED is "x"; a number from 0 to 18446744073709551615 is needed'),
    ("xdbexit", (1, 4, "--kill", "x"), {}, 'ROUNDS is "x"; a number from 0 to 1000000000 is needed'),
    ("xdbexit", (1, 4, "--kill", -1), {}, 'ROUNDS is "-1"; a number'),
    ("xdbexit", (1, 4, "--kill", 1, 2), {}, "more arguments than DIR, CACHE_MB, MT_MB and ROUNDS"),
    ("xdbexit", (1, 4, 2), {}, "more arguments than DIR, CACHE_MB and MT_MB"),
    ("xdbexit", (1, 4, "--kill=2"), {}, 'no flag "--kill=2"'),
    ("xdbexit", (1,), {}, "DIR, CACHE_MB and MT_MB are needed"),
])
def test_wrong_arguments_are_named(tmp_path, program, args, env, part):
    assert part in run(program, tmp_path / "store", *args, status=2, **env).stderr.splitlines()[-1]
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("program, args", [("remixdb", ("put", "-x", "k", "v")), ("xdbtest", ("-x", 1, 4, 5, 5, 1)),
                                           ("xdbexit", ("-x", 1, 4))])
def test_a_flag_is_not_taken_for_a_directory(tmp_path, program, args):
    done = subprocess.run([ROOT / f"{program}.out", *map(str, args)], cwd=tmp_path, capture_output=True, text=True,
                          timeout=1100)
    assert done.returncode == 2 and 'no flag "-x"; a directory of that name is given as ./-x' in done.stderr
    assert not list(tmp_path.iterdir())


def test_tables_leave_descriptors_to_the_rest_of_the_store(tmp_path):
    few = 32  # the store has more tables than that at times
    done = subprocess.run([ROOT / "xdbtest.out", tmp_path / "store", "4", "1", "17", "17", "2"], capture_output=True,
                          text=True, timeout=1100,
                          env={**os.environ, "THREADS": "1", "WORKERS": "1"},
                          preexec_fn=lambda: resource.setrlimit(
                              resource.RLIMIT_NOFILE, (few, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_store_of_others_is_not_written_to(tmp_path):
    store, lines = tmp_path / "store", tmp_path / "lines"
    for key in ("a", "foo", "zebra"):  # before, between and behind the keys that xdbexit makes
        lines.write_text(f"{key}\tvalue\n")
        run("xdbdemo", "import", store, lines)
        for program, *args in (("xdbtest", 1, 4, 10, 5, 1), ("xdbexit", 1, 4), ("xdbexit", 1, 4, "--kill")):
            assert f"holds key \"{key}\", which is not of this program" in run(program, store, *args, status=1).stderr
        assert run("xdbdemo", "dump", store).stdout == f"{key}\tvalue\n"
        for f in store.iterdir():
            f.unlink()


def test_both_modes_of_xdbexit_share_a_directory(tmp_path):
    store = tmp_path / "store"
    found = []
    for mode in ((), ("--kill",), (), ("--kill", 2), ()):
        said = run("xdbexit", store, 1, 16, *mode).stdout
        found += map(int, re.findall(r"^found (\d+) keys$", said, re.M))
    assert found == [0, 100000, 200000]


def test_import_names_the_line_that_is_too_long(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("short\n" + "x" * 65501 + "\n")
    assert "line 2 has 65501 bytes" in run("xdbdemo", "import", tmp_path / "store", lines, status=1).stderr
    assert run("xdbdemo", "dump", tmp_path / "store").stdout == "short\n"


# ---- the tour


def tour(tmp_path, stdout, **kw):
    return subprocess.Popen([ROOT / "xdbdemo.out"], stdout=stdout, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TMPDIR": str(tmp_path)}, **kw)


def pipe_with_room(room):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    with pytest.raises(BlockingIOError):
        while True:
            size += os.write(writer, bytes(4096))
    assert len(os.read(reader, size)) == size == room + os.write(writer, bytes(size - room))
    os.set_blocking(writer, True)
    return reader, writer


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("room", [0, 1500])
def test_an_interrupted_tour_removes_its_directory(tmp_path, sig, room):
    # it waits for the pipe: at its first line, or in its midst with the store open
    reader, writer = pipe_with_room(room)
    process = tour(tmp_path, writer, preexec_fn=lambda: signal.signal(sig, signal.SIG_DFL))
    while not list(tmp_path.glob("xdbdemo.*/store/CURRENT" if room else "xdbdemo.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(sig)
    assert process.communicate(timeout=1100)[1] == ""
    os.close(reader)
    os.close(writer)
    assert process.returncode == -sig
    assert not list(tmp_path.iterdir())


def test_a_tour_that_nobody_reads_removes_its_directory(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    process = tour(tmp_path, writer)
    os.close(writer)
    assert process.communicate(timeout=1100)[1] == ""
    assert process.returncode == -signal.SIGPIPE
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_does_not_end_the_tour(tmp_path):
    reader, writer = pipe_with_room(0)
    process = tour(tmp_path, writer, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    os.close(writer)
    while not list(tmp_path.glob("xdbdemo.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGHUP)
    with open(reader, "rb") as out:
        assert out.read().endswith(b"Every step did what it should.\n")
    assert process.communicate(timeout=1100)[1] == "" and process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_tour_that_finds_no_room_says_where_it_looked(tmp_path):
    said = demo(status=1, TMPDIR=str(tmp_path / "none")).stderr
    assert f"{tmp_path}/none/xdbdemo." in said and "TMPDIR" in said


# ---- the commands of remixdb


def demo(*args, **kw):
    return run("xdbdemo", *args, **kw)


def tool(*args, **kw):
    return run("remixdb", *args, **kw)


def flush(path):
    with xdb.Xdb(path, 8, 8) as db, db.ref() as ref:
        ref.flush()


@pytest.fixture
def store(tmp_path):
    """Holds a to c: the first two in a table, the last in another."""
    path, lines = tmp_path / "store", tmp_path / "lines"
    lines.write_text("a\tone\nb\ttwo\n")
    tool("import", path, lines)
    tool("compact", path)
    lines.write_text("c\tthree\n")
    tool("import", path, lines)
    flush(path)
    return path


HELD = "a\tone\nb\ttwo\nc\tthree\n"


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def all_files(path):
    return {p.relative_to(path): (p.read_bytes(), p.stat().st_mtime_ns) for p in path.rglob("*") if p.is_file()}


def test_every_command_is_in_the_help_its_page_and_the_manual():
    told = re.findall(r"^ +\S+remixdb.out (\w+) +([A-Z\[\] ]*[A-Z\]])", tool("--help").stdout, re.M)
    assert len(told) == 14
    page, manual = (ROOT / "docs" / "COMMAND.md").read_text(), (ROOT / "docs" / "remixdb.1").read_text()
    for name, args in told:
        help_of = tool(name, "--help").stdout
        assert (help_of.startswith("usage: ") and help_of.splitlines()[0].endswith(f" {args}")
                and tool("help", name).stdout == tool("--help", name).stdout == help_of)
        assert f"\n\\fB{name}\\fR " in manual
        for flag in re.findall(r"^  -\w, (--\w+)", help_of, re.M):
            assert flag.replace("-", "\\-") in manual
        if name != "help":
            assert f"`remixdb {name} {args}`" in page
        least, most = len(args.split()) - args.count("["), len(args.split())
        for wrong in {least - 1, most + 1} - {-1}:
            said = tool(name, *["x"] * wrong, status=2)
            assert said.stdout == "" and said.stderr.startswith("usage: ")
            assert said.stderr.endswith(f"\nremixdb: {name} needs {args}, and nothing else\n")
        said = tool(name, "--nosuch", *["x"] * least, status=2)
        assert f'{name}: there is no flag "--nosuch"' in said.stderr and said.stdout == ""
    assert tool("nosuch", "x", status=2).stderr.endswith('\nremixdb: there is no command "nosuch"\n')
    for flag in ("help", "--help", "-h"):
        assert 'no command "nosuch"' in tool(flag, "nosuch", status=2).stderr
    for option in ("\\-\\-version", "REMIXDB_IO"):
        assert option in manual
    assert tool(status=2).stderr.startswith("usage: ")


def test_put_get_del(tmp_path):
    store = tmp_path / "store"
    for command, *args in (("get", "k"), ("del", "k"), ("dump",), ("stats",), ("verify",), ("compact",),
                           ("checkpoint", tmp_path / "to"),
                           ("repair",)):
        assert str(store) in tool(command, store, *args, status=1).stderr
        assert not store.exists() and not (tmp_path / "to").exists()
    tool("put", store, "k", "v\u00e4lue")
    assert tool("get", store, "k").stdout == "v\u00e4lue"
    tool("put", store, "k", "")
    assert tool("get", store, "k").stdout == ""
    assert "no key" in tool("del", store, "j").stdout
    assert tool("dump", store).stdout == "k\n"
    assert "deleted" in tool("del", store, "k").stdout
    assert tool("dump", store).stdout == ""
    said = tool("get", store, "k", status=3)
    assert said.stdout == "" and said.stderr == f'remixdb: {store}: there is no key "k"\n'
    long = "x" * (xdb.KV_MAX + 1)
    for command, *args in (("get",), ("put", ""), ("del",)):
        assert "too big" in tool(command, store, long, *args, status=1).stderr


def test_stats_are_json(store):
    figures = json.loads(tool("stats", store).stdout)
    assert figures["read_only"] is True and figures["table_entries"] == 3 and figures["recovery"]["records"] == 0


def test_metrics_are_open_metrics(store):
    """Each family has its type and help before its sample, no name twice, and the values of the JSON."""
    lines = tool("metrics", store).stdout.splitlines()
    assert lines[-1] == "# EOF"
    families, samples = {}, {}
    for line in lines[:-1]:
        if line.startswith("# "):
            _, what, name, rest = line.split(" ", 3)
            if what == "TYPE":
                assert name not in families
                families[name] = {}
            assert list(families)[-1] == name and what not in families[name]
            families[name][what] = rest
        else:
            name, value = line.rsplit(" ", 1)
            family = list(families)[-1]
            suffix = {"counter": "_total", "gauge": "", "info": "_info"}[families[family]["TYPE"]]
            assert re.sub(r"\{.*\}", "", name) == family + suffix and "HELP" in families[family]
            samples[name] = int(value)
    assert all(name.endswith("_" + family["UNIT"]) for name, family in families.items() if "UNIT" in family)
    figures = json.loads(tool("stats", store).stdout)
    assert samples[f'remixdb_info{{version="{figures["version"]}",io="{figures["io"]}"}}'] == 1
    assert samples["remixdb_table_entries"] == 3 and samples["remixdb_read_only"] == 1
    assert samples["remixdb_disk_table_bytes"] == figures["disk"]["table_bytes"] > 0
    names = [f"{name}_{member}" for name, value in figures.items() if isinstance(value, dict) for member in value]
    names += [name for name, value in figures.items() if isinstance(value, (int, bool))]
    assert sorted(families) == sorted(["remixdb", *(f"remixdb_{name}" for name in names)])


def test_commands_that_read_change_nothing(store, tmp_path):
    before = all_files(store)
    with xdb.Xdb(store, 8, 8, read_only=True):  # another that reads is not in the way
        tool("dump", store)
        tool("get", store, "c")
        tool("stats", store)
        tool("metrics", store)
        assert "another process has it open" in tool("put", store, "c", "", status=1).stderr
    said = tool("verify", store)
    assert re.fullmatch(r".*nothing is damaged\n", said.stdout)
    assert re.fullmatch(r"remixdb: verify: 2 tables and 1 index with 3 records, 0 values apart, "
                        r"and 0 records of the log, are whole; \d+ bytes read, 0 files damaged, "
                        r"0 could not be read\n", said.stderr)
    assert len(tool("checkpoint", store, tmp_path / "to").stdout.splitlines()) == 1
    assert all_files(store) == before
    assert tool("dump", tmp_path / "to").stdout == HELD
    tool("put", tmp_path / "to", "d", "")
    assert tool("dump", store).stdout == HELD
    assert "exists" in tool("checkpoint", store, tmp_path / "to", status=1).stderr
    assert "is the store itself" in tool("checkpoint", store, f"{store}/../store", status=1).stderr


def test_compact(store):
    tool("del", store, "a")
    flush(store)
    said = tool("compact", store)
    assert re.search(r"tables 3 -> 1, .* keys in memory 0 -> 0$", said.stdout) and said.stderr == ""
    assert json.loads(tool("stats", store).stdout)["table_entries"] == 2
    assert tool("dump", store).stdout == "b\ttwo\nc\tthree\n"


def test_an_open_store(store, tmp_path):
    with xdb.Xdb(store, 8, 8):
        for command, *args in (("get", "k"), ("put", "k", "v"), ("del", "k"), ("dump",), ("stats",), ("metrics",),
                               ("verify",), ("compact",),
                               ("checkpoint", tmp_path / "to"), ("repair",), ("import", "/dev/null")):
            assert "another process has it open" in tool(command, store, *args, status=1).stderr
    assert tool("dump", store).stdout == HELD


def die_at_rest(store, writes):
    """A process writes, and dies when all is durable and the log's watermark says so (docs/FORMAT.md)."""
    assert subprocess.run([sys.executable, "-c", f"""
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import xdb
{writes}
def rests():
    figures = db.stats()
    if figures["log"]["durable_sequence"] < figures["sequence"]:
        return False
    for path in pathlib.Path(sys.argv[2]).glob("wal-*"):
        with open(path, "rb") as log:
            log.seek(464)
            end = int.from_bytes(log.read(8), "little")
            log.seek(end)
            if end > 512 and not any(log.read(40)):  # no frame begins there
                return True
    return False
while not rests():
    time.sleep(0.01)
os._exit(7)""", ROOT, store], timeout=1100).returncode == 7


def leave_in_the_log(store):
    """A process puts d, and dies after its log has come to rest."""
    die_at_rest(store, """
db = xdb.Xdb(sys.argv[2], 8, 8, sync=10)
db.ref().put("d", "four")""")


def test_verify_counts_what_the_log_holds(store):
    leave_in_the_log(store)
    said = tool("verify", store)
    assert "with 3 records, 0 values apart, and 1 record of the log, are whole" in said.stderr
    assert "nothing is damaged" in said.stdout


def test_verify_counts_values_that_are_apart(store):
    with xdb.Xdb(store, 8, 8) as db:
        db.ref().put("d", "long" * 10000)
    assert "with 4 records, 1 value apart, and 0 records of the log, are whole" in tool("verify", store).stderr


@pytest.mark.parametrize("what", ["table", "log"])
def test_damage_is_told_and_repaired(store, what):
    if what == "log":
        leave_in_the_log(store)
    value = b"two" if what == "table" else b"four"
    damaged = max(store.glob("*.sst" if what == "table" else "wal-*"), key=lambda p: value in p.read_bytes())
    flip(damaged, damaged.read_bytes().index(value))
    said = tool("verify", store, status=4)
    assert said.stdout == "" and damaged.name in said.stderr
    advice = f"repair {store}\" makes a store of the readable part"
    assert advice in said.stderr
    assert (advice in tool("get", store, "b", status=4).stderr) and (advice in tool("dump", store, status=4).stderr)
    done = tool("repair", store, status=4)
    said = done.stdout
    assert re.fullmatch(rf".*: repaired; \d+ records? kept: .*\. {store}/lost\.1 has what was there, and a REPORT .*\n",
                        said)
    assert re.fullmatch(r"remixdb: .*: repaired; LOST: (at least )?\d+ records, in 1 place; lost\.1/REPORT .*\n",
                        done.stderr) and "; LOST: " in said
    assert re.search(rf"^LOST: .*{damaged.name}", (store / "lost.1" / "REPORT").read_text(), re.M)
    lost = store / "lost.1"
    assert (lost / damaged.name).exists() and (lost / "REPORT").read_text().splitlines()[-1] in said
    tool("verify", store)
    assert tool("dump", store).stdout == ("c\tthree\n" if what == "table" else HELD)
    figures = json.loads(tool("stats", store).stdout)  # what was kept is in tables
    assert figures["table_entries"] == len(records_of(store)) and figures["recovery"]["records"] == 0
    assert not {f.name for f in store.glob("*.sst")} & {f.name for f in (store / "lost.1").glob("*.sst")}
    said = tool("repair", "-v", store)
    assert "/lost.2 has" in said.stdout and all(
        f"remixdb: {line}" in said.stderr for line in (store / "lost.2" / "REPORT").read_text().splitlines())
    said = tool("repair", store)
    assert "/lost.3 has" in said.stdout and "nothing is lost" in said.stdout and said.stderr == ""


@pytest.fixture(scope="module")
def getline_that_clears(tmp_path_factory):
    """A library whose getline clears its buffer when it finds the end of a file, as on FreeBSD and macOS."""
    made = tmp_path_factory.mktemp("getline")
    (made / "getline.c").write_text("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
ssize_t __getdelim(char **line, size_t *cap, int end, FILE *in) {
  ssize_t (*next)(char **, size_t *, int, FILE *) = dlsym(RTLD_NEXT, "getdelim");
  ssize_t n = next(line, cap, end, in);
  if (n < 0 && *line) **line = 0;
  return n;
}
ssize_t getline(char **line, size_t *cap, FILE *in) { return __getdelim(line, cap, '\\n', in); }
""")
    subprocess.run([os.environ.get("CC", "cc"), "-w", "-shared", "-fPIC", made / "getline.c", "-ldl", "-o",
                    made / "getline.so"], check=True)
    return str(made / "getline.so")


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_the_sum_of_a_repair(store, getline_that_clears):
    said = tool("repair", store, LD_PRELOAD=getline_that_clears).stdout
    assert (store / "lost.1" / "REPORT").read_text().splitlines()[-1] in said and "kept" in said


def test_an_import_beside_damage(tmp_path):
    store = tmp_path / "store"
    import_bytes(store, b"".join(b"%05d\tvalue\n" % i for i in range(4000)))
    for table in store.glob("*.sst"):
        flip(table, 1000)
    tool("dump", store, status=4)
    said = import_bytes(store, b"x\ty\n")
    assert re.fullmatch(rf"-: 1 line imported; {store} holds about \d+ keys\n", said.stdout.decode())
    assert said.stderr == b"" and tool("get", store, "x").stdout == "y"


NOT_OURS = "; there is no store of RemixDB, but another program's files"


def test_a_directory_of_another_store(tmp_path):
    """LevelDB's and RocksDB's: their CURRENT names a manifest."""
    for files in ({"CURRENT": "MANIFEST-000004\n", "MANIFEST-000004": "\0" * 100, "LOCK": "", "000003.log": "x" * 9},
                  {"CURRENT": "MANIFEST-000004\n"}, {"CURRENT": ""}):
        other = tmp_path / str(len(files)) / str(len(files["CURRENT"]))
        other.mkdir(parents=True)
        for name, text in files.items():
            (other / name).write_text(text)
        before = all_files(other)
        for command, *args in (("get", "k"), ("put", "k", "v"), ("dump",), ("verify",)):
            said = tool(command, other, *args, status=1).stderr
            assert re.fullmatch(rf"remixdb: open: {other}/.*{NOT_OURS}\n", said), said
        assert all_files(other) == before
    # a store with that CURRENT is a damaged one
    tool("put", tmp_path / "store", "k", "v")
    (tmp_path / "store" / "CURRENT").write_text("MANIFEST-000004\n")
    assert "repair" in tool("get", tmp_path / "store", "k", status=4).stderr


def test_the_name_of_a_directory_does_not_change_the_status(tmp_path):
    """Neither a name that says that there is no store, nor a long one that a message shortens."""
    named = tmp_path / f"x{NOT_OURS}"
    tool("put", named, "k", "v")
    (named / "CURRENT").write_text("MANIFEST-000004\n")
    assert "repair" in tool("get", named, "k", status=4).stderr
    long = tmp_path / ("l" * 250) / ("m" * 250)
    long.mkdir(parents=True)
    (long / "CURRENT").write_text("MANIFEST-000004\n")
    assert "repair" not in tool("get", long, "k", status=1).stderr


def test_records_before_a_damaged_value_are_printed(tmp_path):
    store = tmp_path / "store"
    fill(store, {b"a": b"one", b"b": b"long" * 10000, b"c": b"three"})
    tool("compact", store)
    for value in store.glob("*.val"):
        data = value.read_bytes()
        if b"longlong" in data:
            flip(value, data.index(b"longlong") + 20000)
    for command in ("dump", "scan"):
        said = tool(command, store, status=4)
        assert said.stdout == "a\tone\n" and "repair" in said.stderr and ".val" in said.stderr
    said = tool("scan", "--keys", store)
    assert said.stdout == "a\nb\nc\n" and said.stderr == ""


@pytest.mark.parametrize("damage, at_least", [("cut", True), ("gone", True), ("flip", False), ("none", False)])
def test_synced_records_that_are_lost_are_told(tmp_path, damage, at_least):
    """A log of 300,000 synced records, one file: what of them is not there is named, as far as it is known."""
    store, nr = tmp_path / "store", 300000
    die_at_rest(store, f"""
db = xdb.Xdb(sys.argv[2], 8, 64, sync=10)
r = db.ref()
for i in range({nr}):
    r.put(f"key{{i:08d}}", f"value{{i}}")""")
    log = store / "wal-0"
    if damage == "cut":
        os.truncate(log, 3000000)
    elif damage == "gone":
        log.unlink()
    elif damage == "flip":
        flip(log, len(log.read_bytes().rstrip(b"\0")) - 5)
    if damage == "none":
        said = tool("repair", store)
        assert f"{nr} records kept" in said.stdout and "nothing is lost" in said.stdout and said.stderr == ""
        return
    said = tool("verify", store, status=4)
    done = tool("repair", store, status=4)
    kept = int(re.search(r"(\d+) records kept", done.stdout).group(1))
    report = (store / "lost.1" / "REPORT").read_text()
    assert kept < nr and "LOST" in done.stderr and len(tool("dump", store).stdout.splitlines()) == kept
    if damage == "gone":
        assert "generation 1 is missing: records from sequence number 1 on are lost" in report
        return
    found = re.search(r"LOST: .*/wal-0: offset (\d+), (\d+) bytes: (at least )?(\d+) records are lost, "
                      r"sequence numbers (\d+) to (at least )?(\d+)", report)
    assert found and int(found[5]) == kept + 1 and bool(found[6]) == bool(found[3]) == at_least
    assert int(found[4]) == int(found[7]) - kept and (int(found[7]) < nr if at_least else int(found[7]) == nr)
    # the opening says the same
    assert f"offset {found[1]}: broken frame" in said.stderr and re.search(r"records are lost, sequence numbers .*",
                                                                           found[0])[0] in said.stderr


MODES = {
    "xdbdemo": [(), ("--help",), ("-h",), ("import", "STORE", "/dev/null"), ("dump", "STORE")],
    "remixdb": [("--help",), ("-h",), ("--version",), ("get", "--help"), ("import", "STORE", "/dev/null"),
                ("dump", "STORE"), ("scan", "STORE"), ("get", "STORE", "a"),
                ("put", "STORE", "k", "v"), ("del", "STORE", "k"), ("stats", "STORE"), ("metrics", "STORE"),
                ("verify", "STORE"), ("checkpoint", "STORE", "NEW"),
                ("compact", "STORE"), ("repair", "STORE"), ("destroy", "STORE"), ("help",), ("help", "get")],
    "xdbtest": [("--help",), ("NEW", 1, 4, 5, 5, 1)],
    "xdbexit": [("--help",), ("NEW", 1, 4), ("NEW", 1, 4, "--kill"), ("NEW", 1, 4, "--kill", 0)],
    "xdbbench": [("--help",), ("--db=NEW", "--num=100", "--benchmarks=stats"),
                 ("--db=NEW", "--num=100", "--benchmarks=fillseq")],
}
EVERY_MODE = pytest.mark.parametrize("program, args", [(program, args) for program, modes in MODES.items()
                                                       for args in modes])


def run_mode(store, program, args, **kw):
    args = [str(a).replace("STORE", str(store)).replace("NEW", str(store) + ".new") for a in args]
    env = {**os.environ, "TMPDIR": str(store.parent), "THREADS": "1", "WORKERS": "1"}
    return subprocess.run([ROOT / f"{program}.out", *args], text=True, timeout=1100, env=env, **kw)


def test_every_command_is_among_the_modes():
    for program in "xdbdemo", "remixdb":
        there = {args[0] for args in MODES[program] if args and args[0][0] != "-"}
        assert there == set(re.findall(rf"^ +\S+{program}.out (\w+) ", run(program, "--help").stdout, re.M))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@EVERY_MODE
def test_output_that_cannot_be_written(store, program, args):
    with open("/dev/full", "w") as full:
        done = run_mode(store, program, args, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and f"{program}: standard output" in done.stderr.splitlines()[-1]


@EVERY_MODE
def test_output_that_is_closed_does_not_go_to_files(store, program, args):
    done = run_mode(store, program, args, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1 and f"{program}: standard output" in done.stderr.splitlines()[-1]
    done = run_mode(store, program, args, preexec_fn=lambda: os.closerange(0, 3))
    assert done.returncode == 1
    for lock in store.parent.rglob("LOCK"):
        assert lock.read_bytes() == b""


def test_import_of_what_cannot_be_read_makes_no_store(tmp_path):
    store = tmp_path / "store"
    assert "directory" in tool("import", store, tmp_path, status=1).stderr
    assert str(tmp_path / "none") in tool("import", store, tmp_path / "none", status=1).stderr
    fd = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run([ROOT / "remixdb.out", "import", store, "-"], stdin=fd, capture_output=True, text=True,
                          timeout=1100)
    os.close(fd)
    assert done.returncode == 1 and "directory" in done.stderr
    done = subprocess.run([ROOT / "remixdb.out", "import", store, "-"], preexec_fn=lambda: os.close(0),
                          capture_output=True, text=True, timeout=1100)
    assert done.returncode == 1 and done.stderr.startswith("remixdb: -: ")
    assert not store.exists()
    (tmp_path / "empty").write_text("")
    assert "0 lines" in tool("import", store, tmp_path / "empty").stdout
    assert tool("dump", store).stdout == ""


# ---- records as text


def import_bytes(store, data, *flags, status=0):
    done = subprocess.run([ROOT / "remixdb.out", "import", *flags, store, "-"], input=data, capture_output=True,
                          timeout=1100)
    assert done.returncode == status, done.stderr
    return done


def dump_bytes(store, *flags, command="dump"):
    done = subprocess.run([ROOT / "remixdb.out", command, *flags, store], capture_output=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(store, records):
    with xdb.Xdb(store, 8, 8) as db, db.ref() as ref:
        for key, value in records.items():
            ref.put(key, value)


def records_of(store):
    with xdb.Xdb(store, 8, 8, read_only=True) as db, db.ref() as ref, ref.iter() as it:
        return dict(it)


def test_an_imported_line_is_a_key_and_a_value(tmp_path):
    store = tmp_path / "store"
    import_bytes(store, b"key\tvalue\nword\n\tno key\nempty\t\nsame\t1\nsame\t2\ttab\r\n"
                 b"esc\\ta\\x00\\\\\\n\tv\\r\\xFf\\t\nlast\tline")
    assert records_of(store) == {b"key": b"value", b"word": b"", b"": b"no key", b"empty": b"", b"same": b"2\ttab",
                                 b"esc\ta\0\\\n": b"v\r\xff\t",
                                 b"last": b"line"}
    assert tool("get", store, "key").stdout == "value"
    assert dump_bytes(store) == (b"\tno key\nempty\nesc\\ta\0\\\\\\n\tv\\r\xff\t\nkey\tvalue\nlast\tline\n"
                                 b"same\t2\ttab\nword\n")


def test_lines_without_escapes_come_back_as_sort_prints_them(tmp_path):
    chance = random.Random(1)
    letters = bytes(c for c in range(9, 256) if c not in b"\n\r\\\v\f")
    lines = {bytes(chance.choices(letters, k=chance.randrange(1, 20))).split(b"\t")[0]
             + chance.choice((b"", b"\tvalue", b"\tv\tw")) for _ in range(2000)}
    keyed = {line.split(b"\t")[0]: line for line in sorted(lines) if line.split(b"\t")[0]}
    (tmp_path / "lines").write_bytes(b"".join(line + b"\n" for line in chance.sample(list(keyed.values()), len(keyed))))
    run("xdbdemo", "import", tmp_path / "store", tmp_path / "lines")
    done = subprocess.run([ROOT / "xdbdemo.out", "dump", tmp_path / "store"], capture_output=True, timeout=1100,
                          check=True)
    assert done.stdout == b"".join(keyed[key] + b"\n" for key in sorted(keyed))


# Bytes that a dump could begin with, and an import refuse.
LIKE_OTHERS = [{b"\x1f\x8b\x08": b""}, {b"BZh": b"1"}, {b"\xfd7zXZ": b""}, {b"\x28\xb5\x2f\xfd": b"x"},
               {b"\x04\x22\x4d\x18": b""}, {b"PK\x03\x04": b""},
               {b"\xff\xfe": b""}, {b"\xfe\xffa": b"b"}, {b"\xef\xbb\xbfa": b"b"}, {b"{": b""}, {b'{"a": 1}': b""},
               {b"[": b""}, {b'[{"a"': b""},
               {b"a,b": b"", b"c,d": b"", b"e,f": b""}, {b'"a",b': b"", b'"c,",d': b""}, {b"": b""}, {b"\\": b"\\"}, {}]


@pytest.mark.parametrize("flags", [(), ("--ascii",), ("--separator=,",), ("-s", "\\x01"), ("-s", "x"),
                                   ("-s", "\\x00", "-a")])
def test_what_is_dumped_is_imported(tmp_path, flags):
    chance = random.Random(str(flags))
    special = b"\t\n\r\\,x\0\xff\"{["
    def some(most):
        return bytes(chance.choice((chance.choice(special), chance.randrange(256)))
                     for _ in range(chance.randrange(most)))
    stores = [*LIKE_OTHERS, *({some(12): some(30) for _ in range(200)} for _ in range(3)),
              {bytes([c]): bytes([c]) for c in range(256)}]
    for nr, records in enumerate(stores):
        first, second = tmp_path / f"{nr}.a", tmp_path / f"{nr}.b"
        fill(first, records)
        text = dump_bytes(first, *flags)
        if "--ascii" in flags or "-a" in flags:
            assert all(32 <= c < 127 or c in b"\n\t\0" for c in text)
        import_bytes(second, text, *[f for f in flags if f not in ("--ascii", "-a")])
        assert records_of(second) == records, text
        assert dump_bytes(second, *flags) == text


@pytest.mark.parametrize("beginning", [b"\x1f\x8b\x08", b"BZh91AY", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfdx", b"PK\x03\x04x",
                                       b"\x04\x22\x4d\x18x", b"\xff\xfea", b"\xfe\xffa", b"\xef\xbb\xbfa"])
def test_a_separator_that_begins_another_kind_of_file(tmp_path, beginning):
    """The separator of a first record with an empty key, and its value, look like the beginning of such a file."""
    flag, records = "--separator=\\x%02x" % beginning[0], {b"": beginning[1:], b"z": b"1"}
    fill(tmp_path / "a", records)
    text = dump_bytes(tmp_path / "a", flag)
    assert text.startswith(beginning[:1])
    import_bytes(tmp_path / "b", text, flag)
    assert records_of(tmp_path / "b") == records


@pytest.mark.parametrize("data, kind, advice", [
    (gzip.compress(b"a\tb\n"), "compressed by gzip", "gzip -dc"), (b"BZh91AY", "compressed by bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\0", "compressed by xz", "xz -dc"),
    (b"\x28\xb5\x2f\xfdx", "compressed by zstd", "zstd -dc"), (b"\x04\x22\x4d\x18x", "compressed by lz4", "lz4 -dc"),
    (b"PK\x03\x04x", "a zip archive", "unzip -p"),
    ("a\tb\n".encode("utf-16"), "UTF-16", "iconv"), (b'{"a": "b"}\n', "JSON", "jq"),
    (b'[\n  {"a": 1}\n]\n', "JSON", "jq"), (b"{\r\n", "JSON", "jq"),
    (b"key,value\n1,one\n2,two\n", "CSV", "--separator=,"), (b'"a, b",c\nd,e', "CSV", "--separator=,"),
    (b"\xef\xbb\xbfk,v\na,b\n", "CSV", "--separator=,"),
])
def test_an_import_refuses_what_is_no_text_of_records(tmp_path, data, kind, advice):
    (tmp_path / "file").write_bytes(data)
    for program in "remixdb", "xdbdemo":
        said = run(program, "import", tmp_path / "store", tmp_path / "file", status=1)
        assert f"{tmp_path}/file: is {kind}, and not a record a line; " in said.stderr
        assert advice in said.stderr and "--raw" in said.stderr
        assert said.stdout == "" and not (tmp_path / "store").exists()
    import_bytes(tmp_path / "store", data, "--raw")
    assert dump_bytes(tmp_path / "store", "--raw") == b"".join(sorted(line + b"\n" for line in data.split(b"\n")
                                                                      if line))


@pytest.mark.parametrize("data", [b"Washington, D.C.\nParis\n", b"{a}\n", b"[sic]\n", b'{"a"}\tb\n',
                                  b"a,b\tc\nd,e\tf\n", b"one,line\n", b"a,b\nc,d,e\n"])
def test_an_import_takes_lines_that_only_look_a_little_like_others(tmp_path, data):
    import_bytes(tmp_path / "store", data)
    assert dump_bytes(tmp_path / "store") == b"".join(sorted(line + b"\n" for line in data.split(b"\n") if line))


def test_an_import_names_the_line_that_is_wrong(tmp_path):
    for line in b"C:\\dir", b"a\\", b"k\tv\\x4", b"\\xg0", b"\\q":
        said = import_bytes(tmp_path / "store", b"good\tline\n" + line + b"\n", status=1)
        assert b"-: line 2: a backslash begins none of the escapes" in said.stderr and b"--raw" in said.stderr
    assert records_of(tmp_path / "store") == {b"good": b"line"}
    import_bytes(tmp_path / "raw", b"C:\\dir\tx\r\n", "--raw")
    assert records_of(tmp_path / "raw") == {b"C:\\dir": b"x\r"}


@pytest.mark.parametrize("size", [4090, 4095, 4096, 4097, 5000])
def test_lines_across_the_beginning_that_is_read_first(tmp_path, size):
    lines = [b"a" * size + b"\t1", b"b\t2", b"c" * 5000 + b"\t3", b"\xef\xbb\xbfd\t4"]
    for nr, order in enumerate((lines, lines[::-1], [b"x" * (size - 3) + b"\t5", *lines])):
        for end in b"", b"\n":
            store = tmp_path / f"{nr}{len(end)}"
            import_bytes(store, b"\n".join(order) + end)
            records = dict(line.split(b"\t") for line in order)
            if nr == 1:
                records[b"d"] = records.pop(b"\xef\xbb\xbfd")  # a byte order mark at the beginning
            assert records_of(store) == records


@pytest.mark.parametrize("separator", ["", "ab", "\\n", "\\q", "\\\\"])
def test_a_separator_that_cannot_be(tmp_path, separator):
    assert "--separator needs one byte" in tool("import", "-s", separator, tmp_path / "store", "-", status=2).stderr
    assert not (tmp_path / "store").exists()


def test_scan(tmp_path):
    chance = random.Random(7)
    keys = sorted({bytes(chance.choices(b"ab\xff\t", k=chance.randrange(6))) for _ in range(150)})
    fill(tmp_path / "store", {key: b"v" + key for key in keys})
    def text(key):
        return "".join(f"\\x{c:02x}" for c in key)
    for n in range(150):
        low, high, prefix = (bytes(chance.choices(b"ab\xff\t", k=chance.randrange(4))) if chance.random() < 0.5
                             else None for _ in range(3))
        limit, reverse = chance.choice((None, 1, 5)), chance.random() < 0.5
        expected = [k for k in keys if (low is None or k >= low) and (high is None or k < high)
                    and (prefix is None or k.startswith(prefix))]
        expected = (expected[::-1] if reverse else expected)[:limit]
        flags = [f"--{name}={text(key)}" for name, key in (("from", low), ("to", high), ("prefix", prefix))
                 if key is not None]
        flags += [f"--limit={limit}"] * (limit is not None) + ["--reverse"] * reverse
        with_values = n % 2 == 0
        out = dump_bytes(tmp_path / "store", *flags, *(() if with_values else ("--keys",)), command="scan")
        escaped = {k: k.replace(b"\t", b"\\t") for k in expected}
        assert out == b"".join(escaped[k] + (b"\tv" + k if with_values else b"") + b"\n" for k in expected), flags
    assert '--limit is "0"' in tool("scan", "--limit=0", tmp_path / "store", status=2).stderr
    assert "--from: a backslash" in tool("scan", "--from=\\q", tmp_path / "store", status=2).stderr


def test_a_dump_tells_what_it_does_not_have(store, tmp_path):
    assert tool("dump", store).stderr == ""
    tool("put", store, "--space=x", "k", "v", status=2)  # behind DIR all is KEY and VALUE
    tool("put", "--space=x", store, "k", "in x")
    tool("put", "-S", "y\tz", store, "k", "in y")
    assert tool("get", "-Sx", store, "k").stdout == "in x" and tool("get", store, "k", status=3).stdout == ""
    said = tool("dump", store)
    assert said.stdout == HELD and said.stderr == (
        f'remixdb: {store}: 2 key spaces are not in the dump: "x", "y\tz"; --space=NAME dumps one, and '
        f'"{ROOT / "remixdb.out"} checkpoint {store} TO" copies all\n')
    said = tool("dump", "--space", "x", store)
    assert said.stdout == "k\tin x\n" and said.stderr == ""
    import_bytes(tmp_path / "copy", said.stdout.encode(), "--space=x")
    assert tool("scan", "--space=x", tmp_path / "copy").stdout == "k\tin x\n"
    assert '1 key space is not in the dump: "x";' in tool("dump", tmp_path / "copy").stderr
    tool("del", "--space=x", store, "k")
    assert tool("dump", "--space=x", store).stdout == ""
    for command, *args in (("get", "k"), ("del", "k"), ("scan",), ("dump",)):
        assert 'there is no space "none"' in tool(command, "--space=none", store, *args, status=1).stderr
    assert '2 key spaces' in tool("dump", store).stderr
    with xdb.Xdb(store, 8, 8) as db, db.space("x") as space, space.ref() as ref:
        for i in range(10):
            db.space(f"n{i}")
        ref.put("e", "", expires=time.time() + 1000)
    assert '12 key spaces' in (said := tool("dump", store)).stderr and '"n5", ...;' in said.stderr
    assert "expire" not in said.stderr
    said = tool("dump", "--space=x", store)
    assert said.stdout == "e\n" and re.fullmatch(r"remixdb: .*: some records expire, .*\n", said.stderr)


def test_keys_and_values_with_escapes(tmp_path):
    store = tmp_path / "store"
    tool("put", "-e", store, "a\\x00b", "1\\n2")
    assert records_of(store) == {b"a\0b": b"1\n2"}
    assert tool("get", "-e", store, "a\\x00b").stdout == "1\\n2" and tool("get", "--escapes", store, "a\\x00",
                                                                            status=3).stdout == ""
    assert '"a\\n"' in tool("del", "-e", store, "a\\n").stdout
    assert "KEY: a backslash" in tool("get", "-e", store, "\\", status=2).stderr
    tool("put", store, "-e", "--")  # behind DIR all is KEY and VALUE
    assert tool("get", store, "-e").stdout == "--"
    done = subprocess.run([ROOT / "remixdb.out", "put", store, "input"], input=bytes(range(256)),
                          capture_output=True, timeout=1100)
    assert done.returncode == 0 and records_of(store)[b"input"] == bytes(range(256))


# ---- messages


def test_the_systems_reason_comes_first(tmp_path):
    said = tool("put", tmp_path / "none" / "store", "k", "v", status=1).stderr
    assert said.startswith("remixdb: open: No such file or directory: ") and str(tmp_path / "none") in said
    (tmp_path / "file").write_text("")
    assert "Not a directory" in tool("put", tmp_path / "file" / "store", "k", "v", status=1).stderr
    if os.geteuid() != 0 or shutil.which("setpriv"):
        (tmp_path / "closed").mkdir(mode=0o755)
        for d in (tmp_path, *tmp_path.parents[:2]):
            d.chmod(0o755)
        # another user may not reach the directory that the program was built in
        for name in ("remixdb.out", *(p.name for p in ROOT.glob("libremixdb.*"))):
            shutil.copy(ROOT / name, tmp_path / name)
        under = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        if not under:
            (tmp_path / "closed").chmod(0o555)
        command = [*under, tmp_path / "remixdb.out", "put", tmp_path / "closed" / "store", "k", "v"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1100)
        assert done.returncode == 1 and done.stderr.startswith("remixdb: open: Permission denied: "), done.stderr


def test_what_the_library_tells_comes_with_v_alone(store, tmp_path):
    for command, *args in (("get", "a"), ("dump",), ("compact",), ("checkpoint", tmp_path / "to"),
                           ("import", "/dev/null")):
        flags = [f for f in ("-v", "--verbose") if command != "checkpoint" or f == "-v"]
        for flag in flags:
            said = tool(command, flag, store, *args).stderr
            assert "opened; 1 partition, " in said and all(line.startswith("remixdb: ") for line in said.splitlines())
        if command != "checkpoint":
            assert tool(command, store, *args).stderr == ""
    assert "opened" not in tool("verify", store).stderr
    assert "remixdb: compaction: " in tool("compact", "-v", store).stderr


def test_progress_is_shown(store, tmp_path):
    for command, *args in ("verify",), ("compact",), ("checkpoint", tmp_path / "to"):
        assert f"remixdb: {command}: 100 %\n" in tool(command, "-v", store, *args).stderr
        assert " %" not in tool(command, store, *(f"{a}2" for a in args)).stderr


@pytest.mark.parametrize("command", ["dump", "import"])
def test_progress_on_a_terminal(tmp_path, command):
    try:
        ours, theirs = pty.openpty()
    except OSError as why:
        pytest.skip(f"no terminal can be made here: {why}")
    lines = b"".join(b"%08d\tvalue\n" % i for i in range(50000))
    if command == "dump":
        import_bytes(tmp_path / "store", lines)
    reader, writer = os.pipe()
    process = subprocess.Popen([ROOT / "remixdb.out", command, tmp_path / "store", *["-"] * (command == "import")],
                               **({"stdin": reader, "stdout": subprocess.DEVNULL} if command == "import"
                                  else {"stdout": writer}), stderr=theirs)
    os.close(theirs)
    os.close(writer if command == "dump" else reader)
    pipe = reader if command == "dump" else writer
    done = 0
    while done < len(lines):  # slowly, so that there is something to be seen
        step = len(lines) // 6
        done += len(os.read(pipe, step)) if command == "dump" else os.write(pipe, lines[done:done + step])
        time.sleep(0.06 if command == "dump" else 0.12)
    os.close(pipe)
    assert process.wait(timeout=1100) == 0
    said = b""
    with contextlib.suppress(OSError):  # that is how the end is told
        while piece := os.read(ours, 65536):
            said += piece
    os.close(ours)
    what = b"records written" if command == "dump" else b"lines imported"
    assert b"\x1b[K" in said and re.search(rb"remixdb: " + what + rb": \d+", said) and said.endswith(b"\r\x1b[K")


def test_a_newline_follows_a_value_on_a_terminal(store):
    try:
        ours, theirs = pty.openpty()
    except OSError as why:
        pytest.skip(f"no terminal can be made here: {why}")
    assert subprocess.run([ROOT / "remixdb.out", "get", store, "c"], stdout=theirs, timeout=1100).returncode == 0
    assert os.read(ours, 100) == b"three\r\n"  # the terminal makes two bytes of the newline
    os.close(ours)
    os.close(theirs)


def test_destroy(store, tmp_path):
    (store / "mine").write_text("")
    assert "is destroyed" in tool("destroy", store).stdout
    assert [f.name for f in store.iterdir()] == ["mine"]
    assert tool("destroy", store, status=1).stderr == f"remixdb: {store}: there is no store\n"
