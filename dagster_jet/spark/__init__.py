"""Epochs as Spark jobs. The only place of the engine that imports pyspark."""
