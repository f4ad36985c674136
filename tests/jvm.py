"""How the JVMs of tests start: small, and with Spark's classes as another one had them."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"
"""Where `make test` has the archive of the classes made. Without it tests run as well."""
# A quick start is worth more than peak speed. Methods are compiled earlier than by default, which
# takes 7 % less CPU. With one compiler the default code cache has 48 MB, which hundreds of plans
# fill.
_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.4"
    " -XX:ReservedCodeCacheSize=240m"
)


def start_quickly() -> None:
    """Settings for every JVM that this process and its children start from now on."""
    os.environ["JDK_JAVA_OPTIONS"] = _OPTIONS
    os.environ["DAGSTER_JET_CLASS_ARCHIVE"] = str(CACHE) if any(CACHE.glob("*.jsa")) else "off"
