"""The engines: one program each, which runs in an environment of its own until it is killed.

Only the standard library and `benchmarks.race.order` may be imported at the top of these files:
each environment has one engine and not the others.
"""
