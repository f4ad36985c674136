"""JIT options: compile cheaply first, and with C2 only code that is really hot.

A new Spark JVM calls tens of thousands of methods often enough for HotSpot's optimizing compiler
(C2), although few of them matter. On two cores C2 takes half of the processor time up to a job's
first rows, at the cost of concurrent epochs. With thresholds a hundred times as high, loops over
rows still reach C2 within an epoch or two. Without C2 a job with many rows stays twice as slow.

Source: HotSpot's tiered compilation policy (``compilationPolicy.hpp``).
"""

from __future__ import annotations

_HIGHER = 100
OPTIONS = " ".join(
    (
        # A later HotSpot may have another policy; it then starts with its defaults.
        "-XX:+IgnoreUnrecognizedVMOptions",
        # Tier 3 code counts every branch and is slowest: not compiled while C2 has a queue.
        "-XX:Tier3DelayOn=0",
        f"-XX:Tier4InvocationThreshold={5_000 * _HIGHER}",
        f"-XX:Tier4MinInvocationThreshold={600 * _HIGHER}",
        f"-XX:Tier4CompileThreshold={15_000 * _HIGHER}",
        f"-XX:Tier4BackEdgeThreshold={40_000 * _HIGHER}",
    )
)
"""The multiplied numbers are HotSpot's defaults."""


def options_with(options: str) -> str:
    """The JVM's options, ours first; unchanged if the user has set any tier option."""
    return options if "Tier" in options else f"{OPTIONS} {options}".strip()
