"""Jobs as users hold them: handles, requests from elsewhere, restarts, upkeep beside a run."""
