"""One execution of a job: the loop around the coordinator, and the events that it emits."""
