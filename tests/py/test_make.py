# SPDX-License-Identifier: Apache-2.0
"""The commands that build, test and install: what `make` decides, what make install puts where, and the scripts that
run the tests and look at the form of the sources."""

import os
import pathlib
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import xdb  # noqa: E402

MAKE = shutil.which("gmake") or "make"
# Settings on the command line of the make that runs the tests, such as CCC=gcc, hold for those that they run.
OVERRIDES = shlex.split(os.environ.get("MAKEFLAGS", "").partition(" -- ")[2])
NOT_PASSED_ON = "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "LIBDIR", "INCLUDEDIR", "DATADIR", "BINDIR", "MANDIR"
CLEAN = {k: v for k, v in os.environ.items() if k not in NOT_PASSED_ON}


def make(*args, stdin="", status=0, **env):
    done = subprocess.run([MAKE, "-C", ROOT, "--no-print-directory", *OVERRIDES, *map(str, args)], env={**CLEAN, **env},
                          input=stdin, capture_output=True, text=True, timeout=1100)
    assert done.returncode == status, done.stdout + done.stderr
    return done


# ---- make by itself


def jobs(*args, **env):
    """The -j that recipes see, [] where they run one by one."""
    told = make("-f", "-", "told", *args, stdin="include Makefile\ntold:\n\t@echo 'flags $(MAKEFLAGS)'\n", **env).stdout
    return [word for word in told.split() if re.fullmatch(r"-j\d*", word) and word != "-j1"]


def test_it_uses_the_cores():
    cores = os.sysconf("SC_NPROCESSORS_ONLN")
    assert jobs() == ([f"-j{cores}"] if cores > 1 else [])
    assert jobs("-j1") == []
    assert jobs("-j7") == ["-j7"]
    assert jobs(MAKEFLAGS="-j5") == ["-j5"]


def test_deps_of_a_demonstration_are_few():
    assert ".ci/deps --library" in make("-n", "deps", "demo").stdout
    assert ".ci/deps --library" in make("-n", "deps", "install").stdout
    for goals in (), ("test",), ("demo", "test"):
        told = make("-n", "deps", *goals).stdout
        assert ".ci/deps" in told and "--library" not in told.split(".ci/deps", 1)[1].splitlines()[0]


def test_deps_come_before_all_other_goals():
    told = make("-n", "-j4", "lint", "deps").stdout
    assert told.index(".ci/deps") < told.index("tests/lint.sh")


@pytest.mark.parametrize("mode", ["msan", "valgrind"])
def test_functions_that_stand_before_others_are_linked(mode):
    """Every command that links with --wrap links the files of tests/lib/wrap.h, too. None is carried out."""
    told = make("-n", "-B", "V=1", f"O={mode}", "units", "xdbtest.out").stdout
    links = [line.split() for line in told.splitlines() if " -Wl,--wrap=" in line and " -o " in line]
    links = [words for words in links if "printf" not in words[0]]
    assert len(links) > 100
    for words in links:
        files = {word.rpartition("/")[2] for word in words}
        wanted = {"msan": {"msan.o", "uring.o"}, "valgrind": {"uring.o"}}[mode]
        assert wanted <= files, words[-1]


def test_help_names_goals_that_there_are():
    told = make("help").stdout
    rules = set(re.findall(r"^([\w-]+):", make("-npq", "nosuch", status=2).stdout, re.M))
    lines = re.findall(r"^make ([a-z][\w-]*(?:, [\w-]+)*) *", told, re.M)
    goals = {goal for line in lines for goal in line.split(", ")}
    assert {"deps", "demo", "test", "install", "uninstall", "lint", "help", "clean", "fuzz", "check-asan"} <= goals
    assert goals <= rules
    assert "O=r" in told and "CCC=" in told


def test_a_library_that_is_missing():
    """The names of what to install, instead of a compiler's errors; and what was built before stays as it is."""
    flags = {path: path.read_bytes() for path in ROOT.glob("build/*/flags")}
    said = make("all", "EXTRA_CFLAGS=-nostdinc", status=2).stderr
    assert re.search(r'make: missing here: .*xxhash.*zstd.*\. Run "make deps"\.', said) and "error:" not in said
    assert flags == {path: path.read_bytes() for path in ROOT.glob("build/*/flags")}
    done = subprocess.run(["sh", ".ci/deps", "--check", "--units"], cwd=ROOT, env={**CLEAN, "CFLAGS": "-nostdinc"},
                          capture_output=True, text=True, timeout=1100)
    assert done.returncode == 1 and "cmocka" in done.stderr
    done = subprocess.run(["sh", ".ci/deps", "--nosuch"], cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 2 and 'no option "--nosuch"' in done.stderr


# ---- make install


def library_name(*version, of="remixdb"):
    return ".".join((f"lib{of}", *version, "dylib") if sys.platform == "darwin" else (f"lib{of}", "so", *version))


def install(root, prefix, goal="install"):
    """The library that is tested, not one built anew."""
    args = "-o", library_name(), "-o", "remixdb.out", *OVERRIDES, goal, f"DESTDIR={root}", f"PREFIX={prefix}"
    return subprocess.run([MAKE, "-C", ROOT, *args], env=CLEAN, capture_output=True, text=True, timeout=1100)


@pytest.fixture
def installed(tmp_path):
    """The names of all that was installed, and where."""
    root = tmp_path / "somebody's root"
    done = install(root, "/opt/some where")
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = root / "opt" / "some where"
    return {str(p.relative_to(prefix)) for p in root.rglob("*") if not p.is_dir()}, prefix


def test_the_command_that_is_installed(installed, tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")}
    for args, out in (("put", "k", "v"), "is put"), (("get", "k"), "v"):
        done = subprocess.run([installed[1] / "bin" / "remixdb", args[0], tmp_path / "store", *args[1:]], env=env,
                              capture_output=True, text=True, timeout=1100)
        assert done.returncode == 0 and out in done.stdout, done.stderr


PACKAGE = "__init__.py", "aio.py", "plyvel.py", "py.typed"


def test_what_is_installed(installed):
    names, prefix = installed
    version = xdb.version()
    assert names == {"include/remixdb.h", f"lib/{library_name()}", f"lib/{library_name('0')}",
                     f"lib/{library_name(version)}", "lib/pkgconfig/remixdb.pc", "share/remixdb/xdb.py",
                     *(f"share/remixdb/remixdb/{name}" for name in PACKAGE),
                     "bin/remixdb", "share/man/man1/remixdb.1", "lib/pkgconfig/remixdb-leveldb.pc",
                     "include/remixdb-leveldb/leveldb/c.h",
                     *(f"lib/{library_name(*v, of='remixdb-leveldb')}" for v in ((), ("0",), (version,)))}
    assert (prefix / "lib" / library_name()).resolve() == (prefix / "lib" / library_name(version)).resolve()
    assert "prefix=/opt/some where" in (prefix / "lib" / "pkgconfig" / "remixdb.pc").read_text()
    sources = (ROOT / "python" / "remixdb").iterdir()
    assert {p.name for p in sources if p.is_file() and p.suffix != ".so"} == set(PACKAGE)
    for name in "include/remixdb.h", "share/remixdb/xdb.py":
        assert (prefix / name).read_bytes() == (ROOT / pathlib.Path(name).name).read_bytes()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config")
def test_what_pkg_config_tells(installed):
    def told(*flags, package="remixdb"):
        env = {**os.environ, "PKG_CONFIG_PATH": str(installed[1] / "lib" / "pkgconfig")}
        return subprocess.run(["pkg-config", *flags, package], env=env, capture_output=True, text=True, timeout=1100,
                              check=True).stdout
    flags = ["-I/opt/some where/include", "-L/opt/some where/lib", "-lremixdb"]
    assert shlex.split(told("--cflags", "--libs")) == flags
    assert told("--variable=includedir") == "/opt/some where/include\n"
    assert shlex.split(told("--cflags", "--libs", package="remixdb-leveldb")) == [
        "-I/opt/some where/include/remixdb-leveldb", "-I/opt/some where/include", "-L/opt/some where/lib",
        "-lremixdb-leveldb"]


REFUSED = [(f"/o{c}pt", "which a pkg-config file cannot hold") for c in ("'", '"', "\\", "`", "$$", "#")]


@pytest.mark.parametrize("prefix, why", [("opt", "has to begin with /"), ("~/opt", "has to begin with /"), *REFUSED])
def test_a_prefix_that_is_refused(tmp_path, prefix, why):
    pc = ROOT / "build" / "remixdb.pc"
    before = pc.read_bytes() if pc.exists() else None
    done = install(tmp_path / "root", prefix)
    assert done.returncode == 2 and f"make install: PREFIX={prefix.replace('$$', '$')} has" in done.stdout
    assert why in done.stdout
    assert not (tmp_path / "root").exists()
    assert before == (pc.read_bytes() if pc.exists() else None)


def test_python_with_what_is_installed(installed, tmp_path):
    prefix = installed[1]
    env = {k: v for k, v in os.environ.items() if k != "REMIXDB_LIBRARY"}
    env.update(PYTHONPATH=str(prefix / "share" / "remixdb"), PYTHONDONTWRITEBYTECODE="1",
               LD_LIBRARY_PATH=str(prefix / "lib"), DYLD_LIBRARY_PATH=str(prefix / "lib"))
    done = subprocess.run([sys.executable, "-c", """
import asyncio, sys, xdb
from remixdb import aio, plyvel
with xdb.Xdb("store") as db, db.ref() as ref:
    ref.put("apple", "green")
async def main():
    async with await aio.open("store") as db:
        assert await db.get("apple") == b"green"
asyncio.run(main())
print(xdb.__file__)
maps = open("/proc/self/maps") if sys.platform == "linux" else []
print(*[line.split(maxsplit=5)[5].strip() for line in maps if "libremixdb" in line][:1])
"""], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    module, library = done.stdout.splitlines()
    assert module == str(prefix / "share" / "remixdb" / "xdb.py")
    assert not library or library == str((prefix / "lib" / library_name()).resolve())


def test_uninstall(installed):
    """All that was installed goes; what others have put beside it stays."""
    prefix = installed[1]
    others = prefix / "lib" / "pkgconfig" / "other.pc", prefix / "include" / "other.h"
    for other in others:
        other.write_text("")
    done = install(prefix.parent.parent, "/opt/some where", "uninstall")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {p for p in prefix.rglob("*") if not p.is_dir()} == set(others)
    assert not (prefix / "share" / "remixdb").exists()
    again = install(prefix.parent.parent, "/opt/some where", "uninstall")
    assert again.returncode == 0, again.stdout + again.stderr


# Installing without DESTDIR is tried with the script alone and files that stand for the real ones.


@pytest.fixture
def installer():
    """Runs install.sh, as root or as another user, beside an ldconfig that tells of itself."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        place.chmod(0o755)
        for path in ("tools/install.sh", "remixdb.h", "xdb.py", "docs/remixdb.1", "remixdb.out",
                     "compat/leveldb/leveldb/c.h", *(f"python/remixdb/{name}" for name in PACKAGE)):
            (place / path).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(ROOT / path, place / path)
        (place / "libremixdb.so").write_text("")
        (place / "libremixdb-leveldb.so").write_text("")
        (place / "bin").mkdir()
        ldconfig = place / "bin" / "ldconfig"
        ldconfig.write_text('#!/bin/sh\necho "ldconfig was called: $*"\n')
        ldconfig.chmod(0o755)
        for mine in "build", "mine":
            (place / mine).mkdir()
            (place / mine).chmod(0o777)

        def run(goal, prefix, root, **env):
            other = {"user": pwd.getpwnam("nobody").pw_uid} if os.getuid() == 0 and not root else {}
            env = {"DESTDIR": "", "PREFIX": prefix, "LIBDIR": f"{prefix}/lib", "INCLUDEDIR": f"{prefix}/include",
                   "DATADIR": f"{prefix}/share", "BINDIR": f"{prefix}/bin", "MANDIR": f"{prefix}/man",
                   "SO": "libremixdb.so", "SO_LINK": "libremixdb.so.0", "SO_FULL": "libremixdb.so.0.1.0",
                   "LEVELDB_SO": "libremixdb-leveldb.so", "LEVELDB_LINK": "libremixdb-leveldb.so.0",
                   "LEVELDB_FULL": "libremixdb-leveldb.so.0.1.0",
                   "VERSION": "0.1.0", "LIBS_PRIVATE": "-lzstd",
                   "PATH": f"{place}/bin:{os.environ['PATH']}", **env}
            return subprocess.run(["sh", "tools/install.sh", goal], cwd=place, env=env, capture_output=True, text=True,
                                  timeout=1100, **other)
        yield place, run


def test_installing_without_rights(installer):
    place, run = installer
    (place / "theirs").mkdir(mode=0o555)
    for prefix in place / "theirs", place / "theirs" / "below":
        for goal in "install", "uninstall":
            done = run(goal, prefix, root=False)
            assert done.returncode == 1 and done.stderr == ""
            assert done.stdout == f'make {goal}: no right to write to {place}/theirs. Run "sudo make {goal}", ' \
                                  f"or give a directory of your own: make {goal} PREFIX=$HOME/remixdb\n"
            assert not list((place / "theirs").iterdir()) and not list((place / "build").iterdir())
    (place / "mine" / "file").write_text("")
    assert f"{place}/mine/file is in the way" in run("install", place / "mine" / "file", root=False).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other loaders ask otherwise")
def test_what_the_loader_is_told(installer):
    place, run = installer
    done = run("install", place / "mine", root=False)
    assert done.returncode == 0 and "\nldconfig\n" not in done.stdout, done.stdout + done.stderr
    assert f'export PKG_CONFIG_PATH="{place}/mine/lib/pkgconfig" LD_LIBRARY_PATH="{place}/mine/lib"' in done.stdout
    assert stat.S_IMODE((place / "mine" / "lib" / "libremixdb.so.0.1.0").stat().st_mode) == 0o755
    if os.getuid() == 0:
        for goal in "install", "uninstall":
            assert "\nldconfig\nldconfig was called: \n" in run(goal, place / "mine", root=True).stdout
            assert "ldconfig" not in run(goal, "/mine", root=True, DESTDIR=str(place / "mine")).stdout


# ---- tests/run.sh


@pytest.fixture
def tests(tmp_path):
    """Runs tests/run.sh on programs given by their shell, and a number of them at a time."""
    def run(programs, jobs="-j2", **env):
        paths = []
        for name, text in programs.items():
            path = tmp_path / name
            path.write_text(text if name.endswith(".py") else f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
            paths.append(path)
        env = {**CLEAN, "LOGS": str(tmp_path / "logs"), "PYTHON": sys.executable, "RUN_NAME": "all", "UNDER": "", **env}
        return subprocess.run(["sh", ROOT / "tests" / "run.sh", jobs, *paths], cwd=tmp_path, env=env,
                              capture_output=True, text=True, timeout=1100)
    return run


def said(passed=0, failed=(), skipped=0):
    """What a cmocka program prints."""
    lines = [f"echo '[  PASSED  ] {passed} test(s).'"]
    if skipped:
        lines.append(f"echo '[  SKIPPED ] {skipped} test(s), listed below:'")
    if failed:
        lines.append(f"echo '[  FAILED  ] {len(failed)} test(s), listed below:'")
        lines += [f"echo '[  FAILED  ] {name}'" for name in failed]
    return "\n".join(lines)


def test_run_counts_and_keeps_the_order(tests, tmp_path):
    done = tests({"test_slow": "sleep 1\n" + said(3), "test_quick": said(4, skipped=2),
                  "test_none": "echo not here; exit 77",
                  "test_some.py": "import pytest\ndef test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass\n"})
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    ends = (("slow", "3 passed"), ("quick", "4 passed, 2 skipped"), ("none", "skipped: not here"),
            ("some", "1 passed, 1 skipped"))
    for n, (name, how) in enumerate(ends):
        assert re.fullmatch(rf"\[{n + 1} of 4\] test_{name} +\d+ s  {how}", lines[n])
    assert lines[-1] == "all: 8 passed, 0 failed, 4 skipped"
    assert (tmp_path / "logs" / "total").read_text() == lines[-1] + "\n"


@pytest.mark.parametrize("jobs", ["-j1", "-j3", "-j"])
def test_run_names_what_failed(tests, jobs):
    done = tests({"test_good": said(1), "test_bad": said(5, ("test_x", "test_y")) + "\nexit 2",
                  "test_dead": said(1) + "\nkill -9 $$",
                  "test_empty": "exit 0", "test_py.py": "def test_z(): assert 0\n",
                  "test_wrong.py": "import nosuch\n", "test_last": said(1)}, jobs)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[-1] == "all: 8 passed, 6 failed"
    bad = [line.partition(" (")[0] for line in lines if line.startswith("failed: ")]
    assert bad == ["failed: test_bad: test_x test_y", "failed: test_dead:", "failed: test_empty:",
                   "failed: test_py: test_z", "failed: test_wrong:"]
    assert all(line.startswith("failed: ") for line in lines[-7:-2])
    assert "FAILED: it ran no test" in done.stdout
    assert re.findall(r"^\[(\d) of 7\]", done.stdout, re.M) == list("1234567")


def test_run_puts_files_into_memory(tests, tmp_path):
    """Those of the items that are named, if there is room, and if no place was asked for."""
    programs = dict.fromkeys(("test_quick", "test_disk"), 'echo "files in ${TMPDIR:-/tmp}"\n' + said(1))
    memory = pathlib.Path("/dev/shm")
    room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 4 << 30

    def places(**env):
        assert tests(programs, IN_MEMORY="test_other test_quick", **env).returncode == 0
        return [(tmp_path / "logs" / f"{name}.log").read_text().split()[2] for name in programs]

    quick, disk = places(TMPDIR="")
    assert disk == "/tmp" and quick.startswith("/dev/shm/remixdb-tests-" if room else "/tmp")
    assert quick == "/tmp" or not pathlib.Path(quick).exists()  # nothing stays in memory
    assert places(TMPDIR=str(tmp_path)) == [str(tmp_path)] * 2


def test_run_ends_what_hangs(tests):
    done = tests({"test_hangs": "exec sleep 60"}, TEST_TIMEOUT="1")
    assert done.returncode == 1
    assert "FAILED: not done after 1 s" in done.stdout and "failed: test_hangs:" in done.stdout
    assert done.stdout.splitlines()[-1] == "all: 0 passed, 1 failed"


def test_run_fails_on_what_is_not_there(tmp_path):
    done = subprocess.run(["sh", ROOT / "tests" / "run.sh", tmp_path / "test_nosuch"], cwd=tmp_path,
                          env={**CLEAN, "LOGS": str(tmp_path / "logs"), "RUN_NAME": "tests"},
                          capture_output=True, text=True, timeout=1100)
    assert done.returncode == 1 and "was not built" in done.stdout
    assert done.stdout.endswith("tests: 0 passed, 1 failed\n")


# ---- tests/lint.sh


@pytest.fixture
def sources(tmp_path):
    """A tree of sources that are in form, and what lint.sh says to it."""
    files = {"a.c": "int a(void) { return 1; }\n", "lib.h": "// __builtin_prefetch\n", "b.py": "b = 1\n",
             "tests/c.sh": "#!/bin/sh\necho c\n", ".ci/run": "#!/bin/sh\necho d\n", "Makefile": "all:\n\techo\n"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    shutil.copyfile(ROOT / ".clang-format", tmp_path / ".clang-format")

    def lint(*args):
        done = subprocess.run(["sh", ROOT / "tests" / "lint.sh", *args, tmp_path], capture_output=True, text=True,
                              timeout=1100)
        assert done.returncode == (0 if "good" in done.stdout.splitlines()[-1] else 1), done.stdout + done.stderr
        return done.stdout
    return tmp_path, lint


SHELLCHECK = pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")


@pytest.mark.parametrize("path, text, told", [
    ("a.c", "// " + "x" * 118 + "\n", "a.c:1:// xxx"),
    ("b.py", "#" * 121 + "\n", "b.py:1:###"),
    ("Makefile", "#" * 121 + "\n", "Makefile:1:#"),
    (".ci/run", "#" * 121 + "\n", ".ci/run:1:#"),
    ("b.py", "if b:\n\tb\n", "b.py:2:\tb"),
    ("a.c", "int b; \n", "a.c:1:int b; "),
    ("a.c", "// " + "x " * 55 + "x\n// the\n// x x.\nint a;\n", "a.c:2:// the"),
    ("a.c", "//   A1  " + "x " * 54 + "x\n//   the\n//       x x.\nint a;\n", "a.c:2://   the"),
    ("a.c", "void p(int *a) { __builtin_prefetch(a); }\n", "lib.h has the functions"),
    pytest.param("tests/c.sh", "#!/bin/sh\nrm -rf $1\n", "SC2086", marks=SHELLCHECK)])
def test_lint_notices(sources, path, text, told):
    place, lint = sources
    assert lint() == "lint: 6 files, good\n"
    (place / path).write_text(text)
    assert told in lint() and lint().endswith("lint: 6 files, BAD\n")


def test_lint_takes_the_last_word_of_a_paragraph(sources):
    place, lint = sources
    line = "x " * 55 + "x"
    (place / "a.c").write_text(f"// {line}\n// most\n//\n// {line}\n// most\nint a;\n\n"
                               f"//   a  {'x ' * 50}x\n//      most\n//   b  x\nint b;\n")
    assert lint() == "lint: 6 files, good\n"


def test_lint_leaves_out_what_is_exempt(sources):
    place, lint = sources
    (place / "a.c").write_text("// " + "x" * 118 + "\n")
    (place / "tests" / "lint.exempt").write_text("format *\nwidth b.py\n")
    assert "a.c:1:" in lint()
    (place / "tests" / "lint.exempt").write_text("format *\nwidth *.c\n")
    assert lint() == "lint: 6 files, good\n"


def test_lint_formats(sources):
    place, lint = sources
    (place / "a.c").write_text("int   a ( void ){return 1;}\n")
    done = subprocess.run(["sh", ROOT / "tests" / "lint.sh", "--format", place], capture_output=True, text=True,
                          timeout=1100)
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert (place / "a.c").read_text() == "int a(void) { return 1; }\n" and done.stdout == "lint: 6 files, good\n"
    (place / "a.c").write_text("int a(void){ return 1; }\n")
    assert "a.c:1:12" in lint()
