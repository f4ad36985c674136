"""What sinks for tables of Delta Lake and Iceberg share: data files that tasks write at their final
place, and commits under a marker."""
