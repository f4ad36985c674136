"""Who owns a job: its record and lease, admission, liveness, and what nobody owns any more."""
