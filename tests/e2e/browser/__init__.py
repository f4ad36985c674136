"""What a person sees: Chromium before a real `dagster dev`."""
