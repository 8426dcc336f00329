"""What every test process needs before the first import of a heavy library."""

from __future__ import annotations

import os
import secrets

# Ray reads its way of authentication once a process, at whatever test first touches it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
