"""Options with which Spark renders rows as JSON in all sinks."""

from __future__ import annotations

JSON_TEXT = {
    "ignoreNullFields": "false",
    # By default Spark truncates times to milliseconds and renders them in the session's zone.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Options of `to_json`."""
