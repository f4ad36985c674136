"""Browser tests: Chromium on a real `dagster dev`."""
