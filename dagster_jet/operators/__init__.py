"""Built-in operators, one behaviour per file. Arrow in, Arrow out; no Spark, no store."""
