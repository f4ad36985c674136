"""What a running job shows: written by the job, read by others, and metrics."""
