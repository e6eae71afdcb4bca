# SPDX-License-Identifier: Apache-2.0
"""test_xdb_py.py once more, for xdb.py without its extension module."""

import os
import pathlib
import sys

os.environ["REMIXDB_PYTHON"] = "ctypes"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
for name in ("xdb", "test_xdb_py"):
    sys.modules.pop(name, None)

from test_xdb_py import *  # noqa: E402, F403
import xdb  # noqa: E402


def test_the_extension_module_is_not_used():
    assert xdb._fast is None
