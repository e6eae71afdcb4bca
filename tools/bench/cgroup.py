# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup for a process: version 1 or 2, whichever has the memory controller of this system."""

import errno
import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
NEEDS = ("a memory cgroup is needed. Run it as root, or name with --cgroup a directory of a cgroup hierarchy with the "
         "memory controller that you may write to (with systemd: systemd-run --user --scope -p Delegate=yes)")

LOOKS, LOOK_SECONDS = 50, 0.02


class Refused(Exception):
    """The system does not let this process make such a cgroup."""


def version_of(directory):
    """1 or 2: what limits memory below this directory. None: nothing does."""
    if (directory / "memory.limit_in_bytes").exists():
        return 1
    controllers = directory / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return 2
    return None


def parents(root=ROOT, own="/proc/self/cgroup"):
    """The directories that may get a new cgroup: the roots of the hierarchies, then those that this process is in."""
    found = [root / "memory", root]
    for line in pathlib.Path(own).read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            found.append((root / "memory" if controllers else root) / path.lstrip("/"))
    return [d for d in found if version_of(d)]


class Group:
    """A cgroup of its own below `parent`, with a limit in bytes of memory and swap together."""

    def __init__(self, parent, limit, name=None):
        self.version = version_of(parent)
        self.path = parent / (name or f"xdbbench-{os.getpid()}")
        if self.version == 2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            (parent / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        try:
            self._limit(limit)
        except OSError:
            self.path.rmdir()
            raise

    def _limit(self, limit):
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if self.version == 1 else (
            "memory.max", "memory.swap.max")
        (self.path / names[0]).write_text(str(limit))
        if (self.path / names[1]).exists():
            (self.path / names[1]).write_text(str(limit if self.version == 1 else 0))

    def enter(self):
        """Moves the calling process into it."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def figures(self):
        """most_bytes: the most that was in use; full: how often the limit was met; killed: processes killed for it."""
        if self.version == 1:
            killed = _field(self._read("memory.oom_control"), "oom_kill")
            return {"most_bytes": int(self._read("memory.max_usage_in_bytes") or 0),
                    "full": int(self._read("memory.failcnt") or 0), "killed": killed}
        events = self._read("memory.events")
        return {"most_bytes": int(self._read("memory.peak") or 0), "full": _field(events, "max"),
                "killed": _field(events, "oom_kill")}

    def _read(self, name):
        path = self.path / name
        return path.read_text().strip() if path.exists() else ""

    def remove(self):
        """Its pages leave memory first, so that they are nobody's burden afterwards."""
        for name, text in (("memory.force_empty", "0"), ("memory.reclaim", "1T")):
            try:
                if (self.path / name).exists():
                    (self.path / name).write_text(text)
            except OSError:  # not all could be freed; what is left goes to the parent
                pass
        for _ in range(LOOKS):
            try:
                return self.path.rmdir()
            except OSError as e:
                if e.errno != errno.EBUSY:  # the kernel has not put an ended process away
                    raise
                time.sleep(LOOK_SECONDS)
        return self.path.rmdir()


def _field(text, name):
    for line in text.splitlines():
        if line.split()[:1] == [name]:
            return int(line.split()[1])
    return 0


def make(limit, directory=None, root=ROOT):
    """A group with this limit. Refused tells what is needed."""
    reasons = []
    for parent in [pathlib.Path(directory)] if directory else parents(root):
        if version_of(parent) is None:
            reasons.append(f"{parent}: no memory controller")
            continue
        try:
            return Group(parent, limit)
        except OSError as e:
            reasons.append(f"{e.filename or parent}: {e.strerror}")
    raise Refused("; ".join([NEEDS] + (reasons or [f"{root}: no memory controller"])))
