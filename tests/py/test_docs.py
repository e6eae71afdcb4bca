# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs every block of C and of Python in the README and the guide, so that what they show works."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/GUIDE.md"]
COMPILER = next((c for c in (os.environ.get("CCC"), "cc", "gcc", "clang") if c and shutil.which(c.split()[0])), None)

# A block without main is the middle of a program that has a store open.
BEFORE = """#include <remixdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  struct xdb *db = remixdb_open("/tmp/example", 16, 16, true);
  if (db == NULL) return fprintf(stderr, "%s\\n", remixdb_errmsg()), 1;
  struct xdb_ref *ref = remixdb_ref(db);
"""
AFTER = """
  remixdb_unref(ref);
  remixdb_close(db);
  return 0;
}
"""


def blocks(language):
    return list(find_blocks(language))


def find_blocks(language):
    for page in PAGES:
        text = (ROOT / page).read_text()
        for i, found in enumerate(re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)):
            yield pytest.param(found, id=f"{page}-{i}")


def in_place_of_tmp(text, tmp_path):
    """The stores of the block lie in the test's own directory."""
    assert "/tmp/example" in text
    return text.replace("/tmp/example", str(tmp_path / "example"))


def run(command, tmp_path, **env):
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1100,
                          env={**os.environ, **env})
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
@pytest.mark.parametrize("block", blocks("c"))
def test_c(block, tmp_path):
    source = tmp_path / "block.c"
    whole = block if "int main" in block else BEFORE + block + AFTER
    source.write_text(in_place_of_tmp(whole, tmp_path))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", f"-I{ROOT}"]
    libraries = [f"-L{ROOT}", "-lremixdb", f"-Wl,-rpath,{ROOT}"]
    subprocess.run([*COMPILER.split(), *flags, source, *libraries, "-o", tmp_path / "block"], check=True, timeout=1100)
    run([tmp_path / "block"], tmp_path)
    assert (tmp_path / "example" / "CURRENT").exists()


# Makes a call of the guide's transfer fail, and ends the program badly if a transaction does not end.
FAILING = """#include <remixdb.h>
#include <stdlib.h>
#include <unistd.h>

static int open_ones;

bool my_getn(struct xdb_ref *r, const void *k, uint32_t klen, void *v, uint32_t cap, uint32_t *vlen) {
  if (atoi(getenv("FAILS")) != 1) return remixdb_getn(r, k, klen, v, cap, vlen);
  return remixdb_getn(NULL, k, klen, v, cap, vlen);
}
struct xdb_ref *my_txn_ref(struct xdb_txn *t, struct xdb_space *s) {
  return remixdb_txn_ref(atoi(getenv("FAILS")) == 2 ? NULL : t, s);
}
struct xdb_txn *my_txn_begin(struct xdb *x) {
  struct xdb_txn *const t = remixdb_txn_begin(x);
  open_ones += t != NULL;
  return t;
}
bool my_txn_commit(struct xdb_txn *t) { return open_ones--, remixdb_txn_commit(t); }
void my_txn_abort(struct xdb_txn *t) { open_ones--, remixdb_txn_abort(t); }
__attribute__((destructor)) static void check(void) {
  if (open_ones != 0) _exit(9);
}
"""


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_the_transfer_moves_nothing_when_a_read_fails(tmp_path):
    [block] = [b.values[0] for b in blocks("c") if "remixdb_txn_commit" in b.values[0]]
    (tmp_path / "block.c").write_text(in_place_of_tmp(block, tmp_path))
    (tmp_path / "failing.c").write_text(FAILING)
    mine = [f"-Dremixdb_{name}=my_{name}" for name in ("getn", "txn_ref", "txn_begin", "txn_commit", "txn_abort")]
    begin = [*COMPILER.split(), "-std=gnu11", f"-I{ROOT}"]
    subprocess.run([*begin, *mine, "-c", tmp_path / "block.c", "-o", tmp_path / "block.o"], check=True, timeout=1100)
    subprocess.run([*begin, tmp_path / "failing.c", tmp_path / "block.o", f"-L{ROOT}", "-lremixdb",
                    f"-Wl,-rpath,{ROOT}", "-o", tmp_path / "block"], check=True, timeout=1100)
    for fails, moved in ((1, 0), (2, 0), (0, 30)):
        run([tmp_path / "block"], tmp_path, FAILS=str(fails))
        held = {"a": 100 - moved} | ({"b": moved} if moved else {})
        assert run([ROOT / "remixdb.out", "dump", tmp_path / "example"], tmp_path) == "".join(
            f"{key}\t{amount.to_bytes(4, sys.byteorder).decode()}\n" for key, amount in held.items())


@pytest.mark.parametrize("block", blocks("python"))
def test_python(block, tmp_path):
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}", "PYTHONDONTWRITEBYTECODE": "1"}
    assert run([sys.executable, "-c", in_place_of_tmp(block, tmp_path)], tmp_path, **env)


def test_every_page_has_blocks():
    assert len(blocks("c")) >= 10 and len(blocks("python")) >= 5


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
