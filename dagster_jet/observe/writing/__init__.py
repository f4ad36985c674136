"""Written by a running job: events, its report of progress and its profile."""
