"""Names of variables by which the measurement tells its code location where it is."""

FOLDER, STREAMS = "JET_STREAMS_FOLDER", "JET_STREAMS"


def name_of(number: int) -> str:
    return f"stream_{number:02d}"
