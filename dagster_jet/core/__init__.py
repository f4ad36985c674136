"""The contract and its smallest parts. Standard library only; no I/O, no clock of its own."""

from dagster_jet.core.calls import Callback, ProcessorCalls
from dagster_jet.core.dag import DAG, Supplier, Vertex
from dagster_jet.core.edge import Edge, Routing
from dagster_jet.core.emitter import Emitter, snapshot_emitter
from dagster_jet.core.event_time import EventTimeMapper, EventTimePolicy, watermark_frame_ms
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.inbound import InboundEdge, ProcessorInput
from dagster_jet.core.inbox import Inbox
from dagster_jet.core.items import (
    DONE,
    IDLE,
    BroadcastKey,
    PartitionKey,
    SnapshotBarrier,
    SnapshotEntry,
    Watermark,
    broadcast_key,
)
from dagster_jet.core.outbound import OutboundEdge
from dagster_jet.core.outbox import ContractError, OutboundStream, Outbox
from dagster_jet.core.partitioning import Partitioner, Partitioning
from dagster_jet.core.processor import ItemProcessor, Processor, ProcessorContext
from dagster_jet.core.queue import BoundedQueue
from dagster_jet.core.snapshot_context import Phase1, Phase2, SnapshotContext
from dagster_jet.core.supplier import new_processor
from dagster_jet.core.tasklet import ProcessorTasklet, Progress
from dagster_jet.core.tasklet_state import TaskletState
from dagster_jet.core.watermark import HeldBack, WatermarkCoalescer, WatermarkError
from dagster_jet.errors import ProcessorError

__all__ = [
    "DAG",
    "DONE",
    "IDLE",
    "BoundedQueue",
    "BroadcastKey",
    "Callback",
    "ContractError",
    "Edge",
    "Emitter",
    "EventTimeMapper",
    "EventTimePolicy",
    "Guarantee",
    "HeldBack",
    "InboundEdge",
    "Inbox",
    "ItemProcessor",
    "OutboundEdge",
    "OutboundStream",
    "Outbox",
    "PartitionKey",
    "Partitioner",
    "Partitioning",
    "Phase1",
    "Phase2",
    "Processor",
    "ProcessorCalls",
    "ProcessorContext",
    "ProcessorError",
    "ProcessorInput",
    "ProcessorTasklet",
    "Progress",
    "Routing",
    "SnapshotBarrier",
    "SnapshotContext",
    "SnapshotEntry",
    "Supplier",
    "TaskletState",
    "Vertex",
    "Watermark",
    "WatermarkCoalescer",
    "WatermarkError",
    "broadcast_key",
    "new_processor",
    "snapshot_emitter",
    "watermark_frame_ms",
]
