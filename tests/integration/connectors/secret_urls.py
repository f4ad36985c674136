"""URLs with passwords as users name them: by a variable of the environment."""

from __future__ import annotations

import hashlib
import os

from dagster_jet import Secret


def as_secret(url: str) -> Secret:
    """The variable stays, for readers that connect again."""
    name = f"JET_TEST_URL_{hashlib.blake2b(url.encode(), digest_size=8).hexdigest()}"
    os.environ[name] = url
    return Secret(name)
