"""Creates processor instances; errors of a supplier are reported like errors of a processor."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_jet.dag.graph import Supplier
from dagster_jet.dag.processor import Processor
from dagster_jet.errors import ProcessorError


def new_processor(
    supplier: Supplier,
    vertex: str,
    index: int,
    *,
    job: str | None = None,
    others: Iterable[Processor] = (),
) -> Processor:
    """Call the supplier for one instance of a vertex.

    Args:
        others: instances created before; the supplier must not return one of them again.

    Raises:
        ProcessorError: the supplier raised, returned no `Processor`, or one of the others.
    """

    callback = "supplier()"
    try:
        processor: object = supplier()
    except Exception as raised:
        raise ProcessorError.of(
            raised, vertex=vertex, index=index, callback=callback, job=job, whose="supplier"
        ) from raised
    if not isinstance(processor, Processor):
        wrong = f"returned {processor!r}, which is not a Processor."
    elif any(other is processor for other in others):
        wrong = "returned a Processor that had been returned before."
    else:
        return processor
    cure = "Let the vertex's supplier return a new Processor at each call."
    raise ProcessorError(wrong, vertex=vertex, index=index, callback=callback, cure=cure, job=job)
