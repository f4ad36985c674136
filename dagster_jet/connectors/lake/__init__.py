"""Common code of Delta Lake's and Iceberg's sinks: data files that tasks write at their final
place, and commits under a marker."""

TARGET_FILE_BYTES = 128 << 20
"""Default of `target_file_bytes`."""
