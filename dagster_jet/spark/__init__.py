"""Runs epochs as Spark jobs. The only package of the engine that imports pyspark."""
