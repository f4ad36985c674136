"""The race for everyone: NEXMark queries in five engines, checked by DuckDB, measured from outside."""
