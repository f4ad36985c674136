"""Everything that reads Spark's plans, whose Java classes are private to Spark."""
