"""All metadata keys and tags that this integration writes.

Dashboards, alerts and checks use these names: adding one is safe, renaming one breaks users.
Dagster's own keys are strings here because it does not export their classes.
"""

from __future__ import annotations

# On asset specs; `JetResource.run` reads them back, so that it needs only the context.
META_PIPELINE = "dagster_jet/pipeline"
META_STAGE = "dagster_jet/stage"
META_STAGE_KIND = "dagster_jet/stage_kind"
META_STANDBY = "dagster_jet/standby"
"""On a supervisor: whether it keeps a standby, which holds a slot of the run queue, too."""

# On materializations and observations. The UI shows them as they are, hence short names with the
# unit. Plotted numbers are entries of their own; the rest is in `DETAILS`.
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
LAG_MINUTES = "lag_min"
"""Instead of seconds, where a minute or more is normal: one unit per asset, so plots go on."""
SNAPSHOT_MS = "snapshot_ms"
RESTARTS = "restarts"
RESTORED = "restored"
REPLAYED = "replayed"
STANDS_BY_FOR = "stands_by_for_execution"
UNCHANGED = "unchanged"
OLDER_DEFINITION = "runs_older_definition"
WAITING_FOR_INPUT = "waiting_for_input"
POSITION = "position"
STATE = "state"
LAG_ROWS = "lag_rows"
LAST_COMMIT = "last_commit"
WAITING_PREFIX = "waiting_"
COUNTED_PREFIX, GAUGE_PREFIX, HISTOGRAM_PREFIX = "counted_", "gauge_", "histogram_"
"""Before the names of metrics of users' functions."""
TIME_TRAVEL = "time_travel"
TABLE_HISTORY = "table_history"
DETAILS = "details"

# Inside `DETAILS`.
EPOCH = "epoch"
EXECUTION_ID = "execution"
SNAPSHOT_BYTES = "snapshot_bytes"
FAILED_SNAPSHOTS = "failed_snapshots"
SOURCES = "sources"
HELD_BACK = "watermark_held_back"
OUTPUT = "output"
TABLES = "tables"

# Dagster's standard keys.
DAGSTER_CODE_REFERENCES = "dagster/code_references"
DAGSTER_COLUMN_LINEAGE = "dagster/column_lineage"
DAGSTER_COLUMN_SCHEMA = "dagster/column_schema"
DAGSTER_ROW_COUNT = "dagster/row_count"
DAGSTER_STORAGE_KIND = "dagster/storage_kind"
DAGSTER_URI = "dagster/uri"

DAGSTER_NO_ASSET_EVENT = "__source_asset_observation__"
"""On an output: Dagster records no materialization for it, because the step reports by itself."""

# Tags set by Dagster on runs.
DAGSTER_BACKFILL = "dagster/backfill"
DAGSTER_RETRY_NUMBER = "dagster/retry_number"
DAGSTER_SCHEDULE_NAME = "dagster/schedule_name"
DAGSTER_SENSOR_NAME = "dagster/sensor_name"

# Tags on materializations; Dagster adds neither to a yielded AssetMaterialization.
TAG_DATA_VERSION = "dagster/data_version"
TAG_CODE_VERSION = "dagster/code_version"
TAG_INPUT_VERSION_PREFIX = "dagster/input_data_version/"
TAG_INPUT_POINTER_PREFIX = "dagster/input_event_pointer/"
NO_POINTER = "NULL"
"""Dagster recognizes an input only by both tags; only partitioned inputs need a real pointer."""
UNVERSIONED = "INITIAL"
"""Dagster's data version of an external asset without reports."""

# Tags on runs and jobs.
TAG_PIPELINE = "dagster_jet/pipeline"
TAG_GENERATION = "dagster_jet/generation"
TAG_KIND = "dagster_jet/kind"
"""Kind of a run, for `tag_concurrency_limits`: a stream holds a slot of the run queue for days."""
KIND_STREAM, KIND_DRAINED, KIND_PARTITION = "stream", "drained", "partition"
KIND_STANDBY = "standby"
"""While the run stands by; once it has taken the job over it is a stream."""
TAG_STANDBY = "dagster_jet/standby"
"""Number of a supervisor's request for a standby."""
TAG_PRIORITY = "dagster/priority"
TAG_JOB = ".dagster/dagster_jet_job"
"""Streaming job of a run, with its store and namespace: two deployments on one instance may have
pipelines of one name. The prefix hides the tag in Dagster's UI."""
TAG_SNAPSHOT_IN = ".dagster/dagster_jet_snapshot_in"
"""As `TAG_JOB`, of the job whose snapshot a run was requested for."""
TAG_SNAPSHOT_OF = "dagster_jet/snapshot_of"
TAG_SNAPSHOT = "dagster_jet/snapshot"
TAG_EPOCH = "dagster_jet/epoch"
"""Snapshot that a run was requested for. No `TAG_PIPELINE`: the run does not execute the job."""
TAG_WORKER = ".dagster/dagster_jet_worker"
TAG_MAX_RUNTIME = "dagster/max_runtime"
TAG_MAX_RETRIES = "dagster/max_retries"
