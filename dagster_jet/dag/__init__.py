"""The processor contract and its runtime. Standard library only; no I/O, no clock of its own."""

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.dag.calls import Callback, ProcessorCalls
from dagster_jet.dag.edge import Edge, Routing
from dagster_jet.dag.emitter import Emitter, snapshot_emitter
from dagster_jet.dag.event_time_mapper import EventTimeMapper, EventTimePolicy, watermark_frame_ms
from dagster_jet.dag.graph import DAG, Supplier, Vertex
from dagster_jet.dag.inbound import InboundEdge, ProcessorInput
from dagster_jet.dag.inbox import Inbox
from dagster_jet.dag.items import (
    DONE,
    IDLE,
    BroadcastKey,
    PartitionKey,
    SnapshotBarrier,
    SnapshotEntry,
    Watermark,
    broadcast_key,
)
from dagster_jet.dag.outbound import OutboundEdge
from dagster_jet.dag.outbox import ContractError, OutboundStream, Outbox
from dagster_jet.dag.partitioning import Partitioner, Partitioning
from dagster_jet.dag.processor import ItemProcessor, Processor, ProcessorContext
from dagster_jet.dag.queue import BoundedQueue
from dagster_jet.dag.snapshot_context import Phase1, Phase2, SnapshotContext
from dagster_jet.dag.supplier import new_processor
from dagster_jet.dag.tasklet import CallOutcome, ProcessorTasklet
from dagster_jet.dag.tasklet_state import TaskletState
from dagster_jet.dag.watermark import WatermarkCoalescer, WatermarkError, WatermarkHold
from dagster_jet.errors import ProcessorError

__all__ = [
    "DAG",
    "DONE",
    "IDLE",
    "BoundedQueue",
    "BroadcastKey",
    "CallOutcome",
    "Callback",
    "ContractError",
    "Edge",
    "Emitter",
    "EventTimeMapper",
    "EventTimePolicy",
    "Guarantee",
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
    "WatermarkHold",
    "broadcast_key",
    "new_processor",
    "snapshot_emitter",
    "watermark_frame_ms",
]
