# SPDX-License-Identifier: Apache-2.0
"""The shared library with LevelDB's C interface, loaded by its path as a binding does, and its header."""
import ctypes
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / ("libremixdb-leveldb.dylib" if sys.platform == "darwin" else "libremixdb-leveldb.so")
HEADER = ROOT / "compat" / "leveldb" / "leveldb" / "c.h"
THEIRS = pathlib.Path("/usr/include/leveldb/c.h")  # of the package libleveldb-dev


@pytest.fixture(scope="module")
def ldb():
    lib = ctypes.CDLL(str(LIBRARY))
    for name in "open", "options_create", "readoptions_create", "writeoptions_create", "create_iterator", "get", \
                "iter_key", "property_value":
        getattr(lib, f"leveldb_{name}").restype = ctypes.c_void_p
    return lib


def declared(header):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    return set(re.findall(r"\b(leveldb_\w+)\s*\(", text))


def test_a_binding(ldb, tmp_path):
    err, length = ctypes.c_char_p(), ctypes.c_size_t()
    options = ctypes.c_void_p(ldb.leveldb_options_create())
    reads = ctypes.c_void_p(ldb.leveldb_readoptions_create())
    writes = ctypes.c_void_p(ldb.leveldb_writeoptions_create())
    name = os.fsencode(tmp_path / "store")
    assert not ldb.leveldb_open(options, name, ctypes.byref(err)) and err.value.startswith(b"Invalid argument: ")
    ldb.leveldb_free(err)
    err = ctypes.c_char_p()
    ldb.leveldb_options_set_create_if_missing(options, 1)
    db = ctypes.c_void_p(ldb.leveldb_open(options, name, ctypes.byref(err)))
    assert db.value and not err.value
    for i in range(100):
        key, value = b"key %d" % i, b"value %d" % i
        ldb.leveldb_put(db, writes, key, ctypes.c_size_t(len(key)), value, ctypes.c_size_t(len(value)),
                        ctypes.byref(err))
        assert not err.value
    got = ctypes.c_void_p(ldb.leveldb_get(db, reads, b"key 42", ctypes.c_size_t(6), ctypes.byref(length),
                                          ctypes.byref(err)))
    assert ctypes.string_at(got.value, length.value) == b"value 42"
    ldb.leveldb_free(got)
    it = ctypes.c_void_p(ldb.leveldb_create_iterator(db, reads))
    ldb.leveldb_iter_seek_to_first(it)
    keys = []
    while ldb.leveldb_iter_valid(it) & 0xFF:
        key = ldb.leveldb_iter_key(it, ctypes.byref(length))
        keys.append(ctypes.string_at(key, length.value))
        ldb.leveldb_iter_next(it)
    assert keys == sorted(b"key %d" % i for i in range(100))
    ldb.leveldb_iter_destroy(it)
    ldb.leveldb_close(db)
    for what, pointer in ("options", options), ("readoptions", reads), ("writeoptions", writes):
        getattr(ldb, f"leveldb_{what}_destroy")(pointer)


def test_all_functions_are_there(ldb):
    assert all(hasattr(ldb, name) for name in declared(HEADER))


@pytest.mark.skipif(not THEIRS.exists(), reason="LevelDB's own header is not installed")
def test_the_header_declares_what_leveldbs_does():
    assert declared(THEIRS) == declared(HEADER)


def test_the_script_for_tests_of_others():
    done = subprocess.run(["sh", "tests/compat/foreign.sh"], cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 2 and "foreign.sh c-test FILE" in done.stderr
