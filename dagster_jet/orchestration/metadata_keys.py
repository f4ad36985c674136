"""Every metadata key and tag this integration writes, in one place.

Dashboards, alerts and checks are built on these names: adding one is free, renaming one breaks
somebody. Dagster's own keys are plain strings here because their classes are not exported.
"""

from __future__ import annotations

# On asset specs: what `JetResource.run` reads back, so that it needs nothing but the context.
META_PIPELINE = "dagster_jet/pipeline"
META_TRANSLATOR = "dagster_jet/translator"
META_STAGE = "dagster_jet/stage"
META_STAGE_KIND = "dagster_jet/stage_kind"

# On materializations.
SNAPSHOT_ID = "dagster_jet/snapshot_id"
EPOCH = "dagster_jet/epoch"
EXECUTION_ID = "dagster_jet/execution_id"
RESTARTS = "dagster_jet/restarts"
RESTORED = "dagster_jet/restored"
ROWS_IN = "dagster_jet/rows_in"
ROWS_OUT = "dagster_jet/rows_out"
LATE = "dagster_jet/late"
REJECTED = "dagster_jet/rejected"
STATE_ROWS = "dagster_jet/state_rows"
WATERMARK = "dagster_jet/watermark"
WATERMARK_HELD_BACK_BY = "dagster_jet/watermark_held_back_by"
WATERMARK_HELD_BACK_PARTITION = "dagster_jet/watermark_held_back_partition"
WATERMARK_HELD_BACK_SINCE = "dagster_jet/watermark_held_back_since"
EVENT_TIME_LAG_SECONDS = "dagster_jet/event_time_lag_seconds"
SNAPSHOT_DURATION_MS = "dagster_jet/snapshot_duration_ms"
SNAPSHOT_BYTES = "dagster_jet/snapshot_bytes"
STATE_BYTES = "dagster_jet/state_bytes"
FAILED_SNAPSHOTS = "dagster_jet/failed_snapshots"
SOURCE_ROWS_READ = "dagster_jet/source_rows_read"
SOURCE_ITEMS_LOST = "dagster_jet/source_items_lost"
SOURCE_POSITION_PREFIX = "dagster_jet/source_position/"
SOURCE_LAG_PREFIX = "dagster_jet/source_lag/"

# Dagster's standard keys.
DAGSTER_COLUMN_SCHEMA = "dagster/column_schema"
DAGSTER_ROW_COUNT = "dagster/row_count"
DAGSTER_STORAGE_KIND = "dagster/storage_kind"
DAGSTER_URI = "dagster/uri"

# Tags that Dagster puts on runs.
DAGSTER_RETRY_NUMBER = "dagster/retry_number"
DAGSTER_SCHEDULE_NAME = "dagster/schedule_name"

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
TAG_WORKER = ".dagster/dagster_jet_worker"
"""Dagster's prefix for tags that nobody wants to see."""
TAG_MAX_RUNTIME = "dagster/max_runtime"
TAG_MAX_RETRIES = "dagster/max_retries"
