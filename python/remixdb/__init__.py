# SPDX-License-Identifier: Apache-2.0
"""RemixDB's Python package: the same names as the module xdb, and beside them

    remixdb.plyvel   the interface of plyvel
    remixdb.aio      for asyncio
"""

from xdb import *  # noqa: F403
from xdb import __all__ as __all__
