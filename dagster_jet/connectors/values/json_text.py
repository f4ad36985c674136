"""How Spark renders rows as JSON, the same in every sink."""

from __future__ import annotations

JSON_TEXT = {
    "ignoreNullFields": "false",
    # Without these Spark cuts times to milliseconds, and shows them in the session's zone.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Options of `to_json`."""
