"""The public names: all of them, each once, with the module that has it."""

from dagster_jet import (
    connector_kit as connector_kit,
    contract as contract,
    dag as dag,
    errors as errors,
    events as events,
    sinks as sinks,
    sources as sources,
    tables as tables,
    testing as testing,
)
from dagster_jet.core.guarantee import Guarantee as Guarantee
from dagster_jet.core.job_context import JobContext as JobContext, job_context as job_context
from dagster_jet.core.secret import Secret as Secret
from dagster_jet.errors import (
    ArtifactLostError as ArtifactLostError,
    BadRowError as BadRowError,
    ConfigurationError as ConfigurationError,
    ExecutorLostError as ExecutorLostError,
    FencedError as FencedError,
    InputLostError as InputLostError,
    JetError as JetError,
    JobFailedError as JobFailedError,
    JobStateError as JobStateError,
    LeaseHeldError as LeaseHeldError,
    MembersChangedError as MembersChangedError,
    MissingEnvironmentError as MissingEnvironmentError,
    OutputLostError as OutputLostError,
    PipelineError as PipelineError,
    ProcessorError as ProcessorError,
    Reaction as Reaction,
    ReferenceMissingError as ReferenceMissingError,
    ResultError as ResultError,
    RowsRefusedError as RowsRefusedError,
    SinkError as SinkError,
    SinkMismatchError as SinkMismatchError,
    SinkUnavailableError as SinkUnavailableError,
    SnapshotFailedError as SnapshotFailedError,
    SnapshotInvalidError as SnapshotInvalidError,
    SourceError as SourceError,
    SourceUnavailableError as SourceUnavailableError,
    StoreCorruptedError as StoreCorruptedError,
    StoreError as StoreError,
    StoreMismatchError as StoreMismatchError,
    StoreUnavailableError as StoreUnavailableError,
    StoreUnwritableError as StoreUnwritableError,
    UserFunctionError as UserFunctionError,
    WriteOutcomeUnknownError as WriteOutcomeUnknownError,
)
from dagster_jet.exports.export import Export as Export, ExportState as ExportState
from dagster_jet.jet import Jet as Jet
from dagster_jet.job_config import JobConfig as JobConfig
from dagster_jet.jobs.job import Job as Job, JobResult as JobResult
from dagster_jet.maps import JetMap as JetMap, JournalConfig as JournalConfig
from dagster_jet.observe.reading.explanation import Explanation as Explanation
from dagster_jet.observe.reading.findings import Finding as Finding, FindingKind as FindingKind
from dagster_jet.observe.reading.profile import (
    JobProfile as JobProfile,
    PhaseProfile as PhaseProfile,
)
from dagster_jet.operators.state_difference import StateDifference as StateDifference
from dagster_jet.operators.user.state import State as State
from dagster_jet.orchestration import (
    DagsterJetTranslator as DagsterJetTranslator,
    JetPipelineComponent as JetPipelineComponent,
    JetResource as JetResource,
    JetStageData as JetStageData,
    ObservedStreamsComponent as ObservedStreamsComponent,
    build_jet_asset_checks as build_jet_asset_checks,
    build_jet_asset_specs as build_jet_asset_specs,
    build_jet_check_schedule as build_jet_check_schedule,
    build_jet_control_job as build_jet_control_job,
    build_jet_cut_assets as build_jet_cut_assets,
    build_jet_job as build_jet_job,
    build_jet_lake_maintenance as build_jet_lake_maintenance,
    build_jet_observation_sensor as build_jet_observation_sensor,
    build_jet_openlineage_sensor as build_jet_openlineage_sensor,
    build_jet_schedule as build_jet_schedule,
    build_jet_snapshot_sensor as build_jet_snapshot_sensor,
    build_jet_source_assets as build_jet_source_assets,
    build_jet_supervisor_sensor as build_jet_supervisor_sensor,
    jet_assets as jet_assets,
)
from dagster_jet.pipeline import (
    DeadLetterStage as DeadLetterStage,
    JoinedStage as JoinedStage,
    KeyedStage as KeyedStage,
    LateDeadLetterStage as LateDeadLetterStage,
    LateStage as LateStage,
    Pipeline as Pipeline,
    SourceStage as SourceStage,
    Stage as Stage,
    WindowedStage as WindowedStage,
    Written as Written,
    aggregates as aggregates,
    windows as windows,
)
from dagster_jet.snapshot.manifest import Artifact as Artifact
from dagster_jet.snapshot.protocol import StopKind as StopKind
from dagster_jet.snapshot.record import (
    ExecutionRecord as ExecutionRecord,
    JobStatus as JobStatus,
    SnapshotRef as SnapshotRef,
    StopCause as StopCause,
)

__version__: str
__all__: list[str]
