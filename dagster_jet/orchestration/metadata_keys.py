"""Every metadata key and tag this integration writes, in one place.

Dashboards, alerts and checks are built on these names: adding one is free, renaming one breaks
somebody. Dagster's own keys are plain strings here because their classes are not exported.
"""

from __future__ import annotations

# On asset specs: what `JetResource.run` reads back, so that it needs nothing but the context.
META_PIPELINE = "dagster_jet/pipeline"
META_STAGE = "dagster_jet/stage"
META_STAGE_KIND = "dagster_jet/stage_kind"

# On materializations and observations: short, with the unit in the name, because the UI shows them
# as they are. Numbers that are plotted stand alone; the rest is in `DETAILS`.
SNAPSHOT_ID = "snapshot"
ROWS_READ = "rows_read"
ROWS_IN = "rows_in"
ROWS_OUT = "rows_out"
LATE = "late_rows"
REJECTED = "rejected_rows"
LOST = "lost_items"
STATE_ROWS = "state_rows"
STATE_BYTES = "state_bytes"
WATERMARK = "watermark"
LAG_SECONDS = "lag_s"
SNAPSHOT_MS = "snapshot_ms"
RESTARTS = "restarts"
RESTORED = "restored"
REPLAYED = "replayed"
WAITING_FOR_INPUT = "waiting_for_input"
POSITION = "position"
WAITING_PREFIX = "waiting_"
DETAILS = "details"

# Inside `DETAILS`.
EPOCH = "epoch"
EXECUTION_ID = "execution"
SNAPSHOT_BYTES = "snapshot_bytes"
FAILED_SNAPSHOTS = "failed_snapshots"
SOURCES = "sources"
HELD_BACK = "watermark_held_back"

# Dagster's standard keys.
DAGSTER_CODE_REFERENCES = "dagster/code_references"
DAGSTER_COLUMN_LINEAGE = "dagster/column_lineage"
DAGSTER_COLUMN_SCHEMA = "dagster/column_schema"
DAGSTER_ROW_COUNT = "dagster/row_count"
DAGSTER_STORAGE_KIND = "dagster/storage_kind"
DAGSTER_URI = "dagster/uri"

# Tags that Dagster puts on runs.
DAGSTER_RETRY_NUMBER = "dagster/retry_number"
DAGSTER_SCHEDULE_NAME = "dagster/schedule_name"
DAGSTER_SENSOR_NAME = "dagster/sensor_name"

# Tags on materializations: a yielded AssetMaterialization gets neither by itself.
TAG_DATA_VERSION = "dagster/data_version"
TAG_CODE_VERSION = "dagster/code_version"
TAG_INPUT_VERSION_PREFIX = "dagster/input_data_version/"
TAG_INPUT_POINTER_PREFIX = "dagster/input_event_pointer/"
NO_POINTER = "NULL"
"""Dagster knows an input only by both tags; only partitioned inputs need a real pointer."""
UNVERSIONED = "INITIAL"
"""What Dagster takes as the data version of an external asset that nobody reports on."""

# Tags on runs and jobs.
TAG_PIPELINE = "dagster_jet/pipeline"
TAG_GENERATION = "dagster_jet/generation"
TAG_SNAPSHOT_OF = "dagster_jet/snapshot_of"
TAG_SNAPSHOT = "dagster_jet/snapshot"
TAG_EPOCH = "dagster_jet/epoch"
"""What a run reads that was requested because of a snapshot. Not `TAG_PIPELINE`: it does not drive
the job."""
TAG_WORKER = ".dagster/dagster_jet_worker"
"""Dagster's prefix for tags that nobody wants to see."""
TAG_MAX_RUNTIME = "dagster/max_runtime"
TAG_MAX_RETRIES = "dagster/max_retries"
