# SPDX-License-Identifier: Apache-2.0
"""xdbdemo.out, xdbtest.out, xdbexit.out: what they say to wrong arguments, and that they leave alone what is not theirs; the commands of xdbdemo.out
on a store. And what make install puts where."""

import json
import os
import pathlib
import re
import resource
import shlex
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
    done = subprocess.run([ROOT / f"{program}.out", *map(str, args)], capture_output=True, text=True, timeout=120, env={**os.environ, **env})
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("program", ["xdbdemo", "xdbtest", "xdbexit", "xdbbench"])
def test_help_and_wrong_arguments(program):
    for flag in ("--help", "-h"):
        told = run(program, flag)
        assert told.stdout.startswith("usage: ") and told.stderr == ""
    assert run(program, "--nosuch", status=2).stdout == ""


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


@pytest.mark.parametrize("program, args", [("xdbdemo", ("put", "-x", "k", "v")), ("xdbtest", ("-x", 1, 4, 5, 5, 1)), ("xdbexit", ("-x", 1, 4))])
def test_a_flag_is_not_taken_for_a_directory(tmp_path, program, args):
    done = subprocess.run([ROOT / f"{program}.out", *map(str, args)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and 'no flag "-x"; a directory of that name is given as ./-x' in done.stderr
    assert not list(tmp_path.iterdir())


def test_tables_leave_descriptors_to_the_rest_of_the_store(tmp_path):
    few = 32  # the store has more tables than that at times
    done = subprocess.run([ROOT / "xdbtest.out", tmp_path / "store", "4", "1", "17", "17", "2"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "THREADS": "1", "WORKERS": "1"},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_store_of_others_is_not_written_to(tmp_path):
    store, lines = tmp_path / "store", tmp_path / "lines"
    for key in ("a", "foo", "zebra"):  # before, between and behind the keys that xdbexit makes
        lines.write_text(f"{key}\tvalue\n")
        run("xdbdemo", "import", store, lines)
        for program, *args in (("xdbtest", 1, 4, 10, 5, 1), ("xdbexit", 1, 4), ("xdbexit", 1, 4, "--kill")):
            assert f"holds key \"{key}\t\", which is not of this program" in run(program, store, *args, status=1).stderr
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
    assert run("xdbdemo", "dump", tmp_path / "store").stdout in ("", "short\n")


# ---- the tour


def tour(tmp_path, stdout, **kw):
    return subprocess.Popen([ROOT / "xdbdemo.out"], stdout=stdout, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}, **kw)


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
    reader, writer = pipe_with_room(room)  # it waits for the pipe: at its first line, or in its midst with the store open
    process = tour(tmp_path, writer, preexec_fn=lambda: signal.signal(sig, signal.SIG_DFL))
    while not list(tmp_path.glob("xdbdemo.*/store/CURRENT" if room else "xdbdemo.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(sig)
    assert process.communicate(timeout=120)[1] == ""
    os.close(reader)
    os.close(writer)
    assert process.returncode == -sig
    assert not list(tmp_path.iterdir())


def test_a_tour_that_nobody_reads_removes_its_directory(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    process = tour(tmp_path, writer)
    os.close(writer)
    assert process.communicate(timeout=120)[1] == ""
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
    assert process.communicate(timeout=120)[1] == "" and process.returncode == 0
    assert not list(tmp_path.iterdir())


def test_a_tour_that_finds_no_room_says_where_it_looked(tmp_path):
    said = demo(status=1, TMPDIR=str(tmp_path / "none")).stderr
    assert f"{tmp_path}/none/xdbdemo." in said and "TMPDIR" in said


# ---- the commands of xdbdemo.out


def demo(*args, **kw):
    return run("xdbdemo", *args, **kw)


@pytest.fixture
def store(tmp_path):
    """Holds "a<TAB>" to "c<TAB>": the first two in a table, the last in another."""
    path, lines = tmp_path / "store", tmp_path / "lines"
    lines.write_text("a\tone\nb\ttwo\n")
    demo("import", path, lines)
    demo("compact", path)
    lines.write_text("c\tthree\n")
    demo("import", path, lines)
    return path


HELD = "a\tone\nb\ttwo\nc\tthree\n"


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def all_files(path):
    return {p.relative_to(path): (p.read_bytes(), p.stat().st_mtime_ns) for p in path.rglob("*") if p.is_file()}


def test_every_command_is_in_the_help_and_in_the_readme():
    told = re.findall(r"^ +\S+xdbdemo.out (\w+) +([A-Z ]*[A-Z])", demo("--help").stdout, re.M)
    assert len(told) == 10
    readme = (ROOT / "README.md").read_text()
    for name, args in told:
        assert f"`xdbdemo.out {name} {args}`" in readme
        for wrong in (len(args.split()) - 1, len(args.split()) + 1):
            said = demo(name, *["x"] * wrong, status=2)
            assert said.stdout == "" and said.stderr.startswith("usage: ")
            assert said.stderr.endswith(f"\nxdbdemo: {name} needs {args}, and nothing else\n")
    assert demo("nosuch", "x", status=2).stderr.endswith('\nxdbdemo: there is no command "nosuch"\n')


def test_put_get_del(tmp_path):
    store = tmp_path / "store"
    for command, *args in (("get", "k"), ("del", "k"), ("dump",), ("stats",), ("verify",), ("compact",), ("checkpoint", tmp_path / "to"),
                           ("repair",)):
        assert str(store) in demo(command, store, *args, status=1).stderr
        assert not store.exists() and not (tmp_path / "to").exists()
    demo("put", store, "k", "v\u00e4lue")
    assert demo("get", store, "k").stdout == "v\u00e4lue\n"
    demo("put", store, "k", "")
    assert demo("get", store, "k").stdout == "\n"
    assert "no key" in demo("del", store, "j").stdout
    assert demo("dump", store).stdout == "k\n"
    assert "deleted" in demo("del", store, "k").stdout
    assert demo("dump", store).stdout == ""
    said = demo("get", store, "k", status=1)
    assert said.stdout == "" and 'no key "k"' in said.stderr and "tab" not in said.stderr
    long = "x" * (xdb.KV_MAX + 1)
    for command, *args in (("get",), ("put", ""), ("del",)):
        assert "too big" in demo(command, store, long, *args, status=1).stderr


def test_keys_of_imported_lines_end_with_a_tab(store):
    assert demo("get", store, "a\t").stdout == "one\n"
    assert "one with a tab behind it" in demo("get", store, "a", status=1).stderr


def test_stats_are_json(store):
    figures = json.loads(demo("stats", store).stdout)
    assert figures["read_only"] is True and figures["table_entries"] == 3 and figures["recovery"]["records"] == 0


def test_commands_that_read_change_nothing(store, tmp_path):
    before = all_files(store)
    with xdb.Xdb(store, 8, 8, read_only=True):  # another that reads is not in the way
        demo("dump", store)
        demo("get", store, "c\t")
        demo("stats", store)
        assert "another process has it open" in demo("put", store, "c", "", status=1).stderr
    said = demo("verify", store)
    assert re.fullmatch(r".*nothing is damaged\n", said.stdout) and "2 tables and 1 indexes with 3 records are whole" in said.stderr
    assert len(demo("checkpoint", store, tmp_path / "to").stdout.splitlines()) == 1
    assert all_files(store) == before
    assert demo("dump", tmp_path / "to").stdout == HELD
    demo("put", tmp_path / "to", "d", "")
    assert demo("dump", store).stdout == HELD
    assert "exists" in demo("checkpoint", store, tmp_path / "to", status=1).stderr
    assert "is the store itself" in demo("checkpoint", store, f"{store}/../store", status=1).stderr


def test_compact(store):
    demo("del", store, "a\t")
    said = demo("compact", store)
    assert re.search(r"tables 3 -> 1, .* keys in memory 0 -> 0$", said.stdout) and "compaction: " in said.stderr
    assert json.loads(demo("stats", store).stdout)["table_entries"] == 2
    assert demo("dump", store).stdout == "b\ttwo\nc\tthree\n"


def test_an_open_store(store, tmp_path):
    with xdb.Xdb(store, 8, 8):
        for command, *args in (("get", "k"), ("put", "k", "v"), ("del", "k"), ("dump",), ("stats",), ("verify",), ("compact",),
                               ("checkpoint", tmp_path / "to"), ("repair",), ("import", "/dev/null")):
            assert "another process has it open" in demo(command, store, *args, status=1).stderr
    assert demo("dump", store).stdout == HELD


@pytest.mark.parametrize("what", ["table", "log"])
def test_damage_is_told_and_repaired(store, what):
    if what == "log":  # a process that dies after its log has come to rest
        assert subprocess.run([sys.executable, "-c", """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import xdb
db = xdb.Xdb(sys.argv[2], 8, 8, sync=10)
db.ref().put("d\t", "four")
time.sleep(3)
os._exit(7)""", ROOT, store], timeout=60).returncode == 7
    value = b"two" if what == "table" else b"four"
    damaged = max(store.glob("*.sst" if what == "table" else "wal-*"), key=lambda p: value in p.read_bytes())
    flip(damaged, damaged.read_bytes().index(value))
    said = demo("verify", store, status=1)
    assert said.stdout == "" and damaged.name in said.stderr
    advice = f"repair {store}\" makes a store of what can still be read"
    assert advice in said.stderr
    assert (advice in demo("get", store, "b\t", status=1).stderr) and (advice in demo("dump", store, status=1).stderr)
    said = demo("repair", store).stdout
    assert re.fullmatch(rf".*: repaired; \d+ records kept: .*\. {store}/lost\.1 has what was there, and a REPORT .*\n", said)
    assert (store / "lost.1" / damaged.name).exists() and (store / "lost.1" / "REPORT").read_text().splitlines()[-1] in said
    demo("verify", store)
    assert demo("dump", store).stdout == ("c\tthree\n" if what == "table" else HELD)
    assert "/lost.2 has" in demo("repair", store).stdout


MODES = {
    "xdbdemo": [(), ("--help",), ("-h",), ("import", "STORE", "/dev/null"), ("dump", "STORE"), ("get", "STORE", "a\t"), ("put", "STORE", "k", "v"), ("del", "STORE", "k"),
                ("stats", "STORE"), ("verify", "STORE"), ("checkpoint", "STORE", "NEW"), ("compact", "STORE"), ("repair", "STORE")],
    "xdbtest": [("--help",), ("NEW", 1, 4, 5, 5, 1)],
    "xdbexit": [("--help",), ("NEW", 1, 4), ("NEW", 1, 4, "--kill"), ("NEW", 1, 4, "--kill", 0)],
    "xdbbench": [("--help",), ("--db=NEW", "--num=100", "--benchmarks=stats"), ("--db=NEW", "--num=100", "--benchmarks=fillseq")],
}
EVERY_MODE = pytest.mark.parametrize("program, args", [(program, args) for program, modes in MODES.items() for args in modes])


def run_mode(store, program, args, **kw):
    args = [str(a).replace("STORE", str(store)).replace("NEW", str(store) + ".new") for a in args]
    env = {**os.environ, "TMPDIR": str(store.parent), "THREADS": "1", "WORKERS": "1"}
    return subprocess.run([ROOT / f"{program}.out", *args], text=True, timeout=120, env=env, **kw)


def test_every_command_is_among_the_modes():
    assert {args[0] for args in MODES["xdbdemo"] if args} - {"--help", "-h"} == set(re.findall(r"xdbdemo.out (\w+) ", demo("--help").stdout))


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
    assert "directory" in demo("import", store, tmp_path, status=1).stderr
    assert str(tmp_path / "none") in demo("import", store, tmp_path / "none", status=1).stderr
    fd = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run([ROOT / "xdbdemo.out", "import", store, "-"], stdin=fd, capture_output=True, text=True, timeout=120)
    os.close(fd)
    assert done.returncode == 1 and "directory" in done.stderr
    done = subprocess.run([ROOT / "xdbdemo.out", "import", store, "-"], preexec_fn=lambda: os.close(0), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("xdbdemo: -: ")
    assert not store.exists()
    (tmp_path / "empty").write_text("")
    assert "0 lines" in demo("import", store, tmp_path / "empty").stdout
    assert demo("dump", store).stdout == ""


# ---- make install


def library_name(*version):
    return ".".join(("libremixdb", *version, "dylib") if sys.platform == "darwin" else ("libremixdb", "so", *version))


def install(root, prefix):
    """The library that is tested, not one built anew."""
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "LIBDIR", "INCLUDEDIR", "DATADIR")}
    return subprocess.run([shutil.which("gmake") or "make", "-C", ROOT, "-o", library_name(), "install", f"DESTDIR={root}", f"PREFIX={prefix}"],
                          env=clean, capture_output=True, text=True, timeout=120)


@pytest.fixture
def installed(tmp_path):
    """The names of all that was installed, and where."""
    root = tmp_path / "somebody's root"
    done = install(root, "/opt/some where")
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = root / "opt" / "some where"
    return {str(p.relative_to(prefix)) for p in root.rglob("*") if not p.is_dir()}, prefix


def test_what_is_installed(installed):
    names, prefix = installed
    version = xdb.version()
    assert names == {"include/remixdb.h", f"lib/{library_name()}", f"lib/{library_name('0')}", f"lib/{library_name(version)}",
                     "lib/pkgconfig/remixdb.pc", "share/remixdb/xdb.py"}
    assert (prefix / "lib" / library_name()).resolve() == (prefix / "lib" / library_name(version)).resolve()
    assert "prefix=/opt/some where" in (prefix / "lib" / "pkgconfig" / "remixdb.pc").read_text()
    for name in "include/remixdb.h", "share/remixdb/xdb.py":
        assert (prefix / name).read_bytes() == (ROOT / pathlib.Path(name).name).read_bytes()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config")
def test_what_pkg_config_tells(installed):
    def told(*flags):
        env = {**os.environ, "PKG_CONFIG_PATH": str(installed[1] / "lib" / "pkgconfig")}
        return subprocess.run(["pkg-config", *flags, "remixdb"], env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shlex.split(told("--cflags", "--libs")) == ["-I/opt/some where/include", "-L/opt/some where/lib", "-lremixdb"]
    assert told("--variable=includedir") == "/opt/some where/include\n"


@pytest.mark.parametrize("prefix, why", [("opt", "has to begin with /"), ("~/opt", "has to begin with /"),
                                         *[(f"/o{c}pt", "which a pkg-config file cannot hold") for c in ("'", '"', "\\", "`", "$$", "#")]])
def test_a_prefix_that_is_refused(tmp_path, prefix, why):
    before = (ROOT / "remixdb.pc").read_bytes() if (ROOT / "remixdb.pc").exists() else None
    done = install(tmp_path / "root", prefix)
    assert done.returncode == 2 and f"make install: PREFIX={prefix.replace('$$', '$')} has" in done.stdout and why in done.stdout
    assert not (tmp_path / "root").exists()
    assert before == ((ROOT / "remixdb.pc").read_bytes() if (ROOT / "remixdb.pc").exists() else None)


def test_python_with_what_is_installed(installed, tmp_path):
    prefix = installed[1]
    env = {k: v for k, v in os.environ.items() if k != "REMIXDB_LIBRARY"}
    env.update(PYTHONPATH=str(prefix / "share" / "remixdb"), PYTHONDONTWRITEBYTECODE="1", LD_LIBRARY_PATH=str(prefix / "lib"),
               DYLD_LIBRARY_PATH=str(prefix / "lib"))
    done = subprocess.run([sys.executable, "-c", """
import sys, xdb
with xdb.Xdb("store") as db, db.ref() as ref:
    ref.put("apple", "green")
print(xdb.__file__)
print([line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "libremixdb" in line][0] if sys.platform == "linux" else "")
"""], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    module, library = done.stdout.splitlines()
    assert module == str(prefix / "share" / "remixdb" / "xdb.py")
    assert not library or library == str((prefix / "lib" / library_name()).resolve())
