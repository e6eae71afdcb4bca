# SPDX-License-Identifier: Apache-2.0
"""xdbdemo.out, xdbtest.out, xdbexit.out: what they say to wrong arguments, and that they leave alone what is not theirs."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
    ("xdbtest", (1, 4, 99, 5), {}, "DATA_POWER"),
    ("xdbtest", ("x", 4, 10, 5), {}, "CACHE_MB"),
    ("xdbtest", (1, 4, 10, 5, 1), {"THREADS": "x"}, "THREADS"),
    ("xdbexit", ("x", 4), {}, "CACHE_MB"),
    ("xdbexit", (1, -4), {}, "MT_MB"),
    ("xdbexit", (1, 4, "--kill"), {"SEED": "x"}, "SEED"),
])
def test_wrong_numbers_are_named(tmp_path, program, args, env, part):
    assert part in run(program, tmp_path / "store", *args, status=2, **env).stderr
    assert not (tmp_path / "store").exists()


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


def test_import_of_what_cannot_be_read_makes_no_store(tmp_path):
    store = tmp_path / "store"
    assert "directory" in run("xdbdemo", "import", store, tmp_path, status=1).stderr
    assert str(tmp_path / "none") in run("xdbdemo", "import", store, tmp_path / "none", status=1).stderr
    fd = os.open(tmp_path, os.O_RDONLY)
    done = subprocess.run([ROOT / "xdbdemo.out", "import", store, "-"], stdin=fd, capture_output=True, text=True, timeout=120)
    os.close(fd)
    assert done.returncode == 1 and "directory" in done.stderr
    assert not store.exists()
    (tmp_path / "empty").write_text("")
    assert "0 lines" in run("xdbdemo", "import", store, tmp_path / "empty").stdout
    assert run("xdbdemo", "dump", store).stdout == ""
