"""Jobs of other engines, shown in Dagster as external assets."""
