"""Soak tests, too slow for every change: hundreds of real kills at random moments, rows compared.

python -m tests.soak --kills 500
"""
