# SPDX-License-Identifier: Apache-2.0
"""tools/bench/bench_growth.py: the table, the counting of files and syncs, and a small run."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
import bench_growth as growth  # noqa: E402


def test_the_table_has_every_row_and_says_what_is_not_known():
    results = {("a", 1_000_000): {name: 2.0 for _, name, _ in growth.ROWS}, ("b", 1_000_000): {"open_s": 0.25}}
    lines = growth.table(results, ["a", "b"], [1_000_000, 4_000_000]).splitlines()
    assert lines[0] == "| a / b, records | 1 M | 4 M |" and len(lines) == 2 + len(growth.ROWS)
    row = next(line for line in lines if line.startswith("| opening warm"))
    assert row == "| opening warm, s | 2.000 / 0.250 | - / - |"


def test_children_are_those_of_the_process():
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in growth.children(os.getpid())
            assert child.pid not in growth.children(1)
        finally:
            child.kill()


@pytest.fixture(scope="module")
def syncs(tmp_path_factory):
    out = tmp_path_factory.mktemp("syncs") / "syncs.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", ROOT / "tools" / "bench" / "syncs.c", "-ldl", "-o",
                    out], check=True)
    return str(out)


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_files_and_syncs_are_counted(syncs, tmp_path):
    text = ("import os; a = os.open('a', os.O_CREAT | os.O_WRONLY); b = os.open('a', os.O_CREAT | os.O_WRONLY);"
            "os.fsync(a); os.fdatasync(b); os.fsync(b); os.open('b', os.O_CREAT | os.O_EXCL | os.O_WRONLY)")
    out = tmp_path / "counts"
    subprocess.run([sys.executable, "-S", "-E", "-B", "-c", text], check=True, cwd=tmp_path,
                   env={**os.environ, "LD_PRELOAD": syncs, "BENCH_SYNCS": str(out)})
    assert out.read_text().split() == ["2", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_small_run(syncs, tmp_path):
    if not (ROOT / "xdbbench.out").exists():
        pytest.skip("xdbbench.out is not built")
    command = [sys.executable, ROOT / "tools" / "bench" / "bench_growth.py", "--steps", "2e5,1e9", "--most", "1e6",
               "--engines", "remixdb", "--limit-mb", "0", "--db", tmp_path, "--syncs", syncs, "--memtable-mb", "1",
               "--cache-mb", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(growth.ROWS)
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[1].strip(" |") for line in lines if " | " in line}
    assert "-" not in cells.values()
    assert 4 < float(cells["descriptors"]) < 100 and float(cells["write amplification"]) > 1
    assert 2 <= float(cells["flush: files made"]) <= 8 and 2 <= float(cells["flush: syncs"]) <= 8
    assert not list(tmp_path.iterdir())


def test_steps_beyond_the_most_are_left_out():
    if not (ROOT / "xdbbench.out").exists():
        pytest.skip("xdbbench.out is not built")
    assert growth.parse(["--most", "2e7"]).steps == [1_000_000, 4_000_000, 16_000_000]
    with pytest.raises(SystemExit):
        growth.parse(["--most", "10"])
