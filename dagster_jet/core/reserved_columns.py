"""Names of the engine's own columns, which travel beside a stream's columns."""

from __future__ import annotations

# A test finds these names in the package.
_NAMES = """
__ack __alone __arrival __bucket __corrupt __count __epoch __expiry __fault __file __first __gone
__hash __headers __is_version __json __key __last __last_row __line __matched __meets __moment
__nan __newest __number __order __origin __outer __parsed __part __partition __place __position
__read_from __reason __refused __role __row __row_index __row_step __rows __seen __session __shard
__since __slot __state __tag __task __text __time __timed __timestamp __top __topic __touched
__value __version __window __window_end
"""
RESERVED_COLUMNS = frozenset(_NAMES.split())
