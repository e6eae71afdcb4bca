# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: make builds the library, which goes into the package remixdb. xdb.py is a module by itself, and a
module by itself cannot say that it has types, so the wheel has it as a stub package, too."""

import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path("build") / "python"  # all that is built lies in build/, which `make clean` removes
VERSION = re.search(r'^#define REMIXDB_VERSION_STRING "(.*)"', (ROOT / "remixdb.h").read_text(), re.M)[1]


def run_make(*arguments):
    # A make that runs this one has options and jobs of its own.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    subprocess.run([shutil.which("gmake") or "make", "-C", ROOT, "--no-print-directory", *arguments], env=env,
                   check=True)


class BuildPy(build_py):
    def run(self):
        shutil.rmtree(self.build_lib, ignore_errors=True)  # files of an earlier build are no part of this one
        super().run()
        if not self.editable_mode:
            stubs = pathlib.Path(self.build_lib) / "xdb-stubs"
            stubs.mkdir(parents=True)
            shutil.copyfile(ROOT / "xdb.py", stubs / "__init__.pyi")


class BuildExt(build_ext):
    def run(self):
        super().run()
        if self.inplace:  # xdb.py stays where it is, and looks beside itself
            run_make("libremixdb.so")
        else:
            run_make("wheel-library", f"OUT={(pathlib.Path(self.build_lib) / 'remixdb').resolve()}")


(ROOT / BUILD).mkdir(parents=True, exist_ok=True)
setup(
    version=VERSION,
    py_modules=["xdb"],
    packages=["remixdb"],
    package_dir={"remixdb": "python/remixdb"},
    package_data={"remixdb": ["py.typed"]},
    # xdb.py does without the extension module where it does not compile.
    ext_modules=[Extension("_xdb", ["python/_xdb.c"], include_dirs=["."], depends=["remixdb.h"], optional=True,
                           extra_compile_args=["-std=gnu11"])],
    cmdclass={"build_py": BuildPy, "build_ext": BuildExt},
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
)
