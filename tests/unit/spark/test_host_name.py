"""A host whose name no resolver knows: Spark's JVM would not start there."""

from __future__ import annotations

import os
import socket

import pytest

from dagster_jet.spark.cluster import session


def test_the_jvm_uses_the_loopback_address_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "")  # so that it is undone, whatever it was
    monkeypatch.delenv("SPARK_LOCAL_IP")
    session._use_loopback_if_unnamed()
    assert "SPARK_LOCAL_IP" not in os.environ, "this host has a name"

    monkeypatch.setattr(socket, "gethostname", lambda: "0474d944cdf5.invalid")
    session._use_loopback_if_unnamed()
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.2"
    session._use_loopback_if_unnamed()
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.2", "what a user has set stays"
