"""Built-in operators, one per file. They take and return Arrow; they use no Spark and no store."""
