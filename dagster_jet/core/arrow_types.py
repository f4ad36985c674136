"""Arrow's classes on the public face.

pyarrow has no type hints: to a strict type checker its classes are unknown, and so is each function
of ours that names one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`."""
ArrowBatch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""
ArrowSchema: TypeAlias = Any
"""A `pyarrow.Schema`."""
ArrowType: TypeAlias = Any
"""A `pyarrow.DataType`."""
