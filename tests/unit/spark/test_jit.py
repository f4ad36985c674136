"""The JVM's compilers: our options are ones that this Java knows, and a user's own come before."""

from __future__ import annotations

import os
import subprocess

from dagster_jet.spark.cluster import jit


def test_this_java_takes_every_option() -> None:
    strict = [option for option in jit.OPTIONS.split() if "Ignore" not in option]
    java = ["java", *strict, "-XX:+PrintFlagsFinal", "-version"]
    plain = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    flags = subprocess.run(java, env=plain, capture_output=True, text=True, check=True).stdout
    taken = {line.split()[1]: line.split() for line in flags.splitlines() if "Tier" in line}
    for option in strict:
        name, value = option.removeprefix("-XX:").split("=")
        assert taken[name][3] == value, option


def test_what_a_user_says_of_tiers_is_left_alone() -> None:
    assert jit.options_with("-Dx=1") == f"{jit.OPTIONS} -Dx=1"
    assert jit.options_with("") == jit.OPTIONS
    own = "-XX:TieredStopAtLevel=1"
    assert jit.options_with(own) == own
