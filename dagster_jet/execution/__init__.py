"""One execution of a job: the loop around the coordinator, and what it hands out."""
