# SPDX-License-Identifier: Apache-2.0
"""The wheel, and the types: what a user has after `pip install .`."""

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MYPY = next(([*command, "-m", "mypy"] for command in ([sys.executable], ["python3"], ["/usr/bin/python3"])
             if subprocess.run([*command, "-m", "mypy", "--version"], capture_output=True).returncode == 0), None)
typed = pytest.mark.skipif(MYPY is None, reason="mypy is not here")
# The tests run in a make, and the wheel's build is a make of its own.
CLEAN = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "REMIXDB_LIBRARY")}


def run(*command, status=0, **kw):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1100, env=CLEAN, **kw)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    for needed in ("pip", "setuptools", "wheel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"building a wheel without a network needs {needed} in {sys.executable}")
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", place, ROOT)
    found, = place.glob("remixdb-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python of its own that has the wheel and nothing else."""
    place = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", place)
    executable = place / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", executable, "install", "--no-index", "--no-deps", wheel)
    return executable


def test_what_the_wheel_has(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"xdb.py", "remixdb/__init__.py", "remixdb/plyvel.py", "remixdb/aio.py", "remixdb/py.typed"} <= names
    assert "remixdb/libremixdb.so" in names or "remixdb/libremixdb.dylib" in names
    assert "none-any" not in wheel.name
    assert not [name for name in names if name.startswith(("tests", "python", "build"))]


def test_the_wheel_works_by_itself(python, tmp_path):
    told = run(python, "-c", """
import sys, sysconfig, xdb, remixdb, remixdb.plyvel, remixdb.aio
with xdb.Xdb("store") as db, db.ref() as ref:
    ref.put("apple", "green")
    assert list(ref.iter()) == [(b"apple", b"green")]
assert remixdb.Xdb is xdb.Xdb
print(xdb._fast is not None)
print(all(m.__file__.startswith(sys.prefix) for m in (xdb, remixdb)))
print([line for line in open("/proc/self/maps") if "libremixdb" in line and sys.prefix not in line])
""" if sys.platform == "linux" else "import xdb; xdb.version(); print(xdb._fast is not None); print(True); print([])",
               cwd=tmp_path)
    fast, inside, outside = told.splitlines()
    assert inside == "True" and outside == "[]"
    headers = os.path.exists(os.path.join(run(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"
                                              ).strip(), "Python.h"))
    assert fast == str(headers and shutil.which("cc") is not None)


def test_a_source_distribution_has_what_building_needs(tmp_path):
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not here")
    run(sys.executable, "setup.py", "-q", "sdist", "-d", tmp_path, cwd=ROOT)
    archive, = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    folders = re.search(r"^FOLDERS := (.*)", (ROOT / "Makefile").read_text(), re.M)[1].split()
    sources = {str(path.relative_to(ROOT)) for folder in [".", *folders] for path in (ROOT / folder).glob("*.[ch]")}
    assert len(sources) > 100
    assert sources | {"Makefile", "remixdb.map", "tests/tests.mk", "tools/bench/bench.mk", "python/_xdb.c", "xdb.py",
                      "python/remixdb/plyvel.py", ".ci/deps", "setup.py", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(("tests/py", "build/release", "docs"))]


GOOD = """
import xdb
from remixdb import plyvel

def use(db: xdb.Xdb) -> list[tuple[bytes, bytes]]:
    with db.ref() as ref:
        ref.put("a", b"b")
        value: bytes | None = ref.get("a")
        print(value)
        for key in ref.iter(keys_only=True, prefix="a"):
            print(key.decode())
        return list(ref.iter(start=b"a", reverse=True))

def other(db: plyvel.DB) -> bytes | None:
    return db.get(b"a")
"""


@typed
def test_a_program_is_checked_against_the_types_of_the_wheel(python, tmp_path):
    program = tmp_path / "program.py"
    check = [*MYPY, "--strict", "--python-executable", python, "--cache-dir", tmp_path / "cache", program]
    program.write_text(GOOD)
    run(*check, cwd=tmp_path)
    program.write_text(GOOD + "\nxdb.Xdb('store').ref().put('a', 7)\n")
    assert 'incompatible type "int"' in run(*check, cwd=tmp_path, status=1)


@typed
def test_the_sources_have_strict_types(tmp_path):
    run(*MYPY, "--cache-dir", tmp_path, ROOT / "xdb.py", *(ROOT / "python" / "remixdb").glob("*.py"), cwd=ROOT)


def test_the_extension_module_is_used_where_it_is_built():
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    if not (ROOT / f"_xdb{suffix}").exists():
        pytest.skip(f"_xdb{suffix} is not built: Python's headers are not here")
    env = {k: v for k, v in CLEAN.items() if k != "REMIXDB_PYTHON"}
    done = subprocess.run([sys.executable, "-c", "import xdb; print(xdb._fast.__file__)"], cwd=ROOT, env=env,
                          capture_output=True, text=True, timeout=1100)
    assert done.stdout.strip() == str(ROOT / f"_xdb{suffix}"), done.stderr
