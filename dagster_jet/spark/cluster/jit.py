"""What the JVM compiles, and how soon: cheaply at first, thoroughly only what is hot indeed.

A young Spark calls tens of thousands of methods often enough for HotSpot's thorough compiler (C2),
and few of them will ever matter: on two cores that is half of the processor time up to a job's
first rows, taken from the epochs beside it. With thresholds a hundred times as high, loops over
rows still get there within an epoch or two. Without C2 a job of many rows takes twice the time for
good.

Source: HotSpot's tiered compilation policy (``compilationPolicy.hpp``).
"""

from __future__ import annotations

_HIGHER = 100
OPTIONS = " ".join(
    (
        # A later HotSpot may have another policy; then it starts as it would have.
        "-XX:+IgnoreUnrecognizedVMOptions",
        # Code that counts every branch waits for C2 at its slowest: not while that has a queue.
        "-XX:Tier3DelayOn=0",
        f"-XX:Tier4InvocationThreshold={5_000 * _HIGHER}",
        f"-XX:Tier4MinInvocationThreshold={600 * _HIGHER}",
        f"-XX:Tier4CompileThreshold={15_000 * _HIGHER}",
        f"-XX:Tier4BackEdgeThreshold={40_000 * _HIGHER}",
    )
)
"""HotSpot's own numbers are those that are multiplied."""


def options_with(options: str) -> str:
    """The JVM's options, ours first; those of a user who says something of tiers are left alone."""
    return options if "Tier" in options else f"{OPTIONS} {options}".strip()
