"""The engine on a real Spark, with real files, real kills and an oracle of its own."""
