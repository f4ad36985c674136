"""State that was saved under other types is refused: a key would have another hash by now."""

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.processors.deduplicate import Deduplicate
from dagster_jet.processors.saved_schema import in_state_schema
from tests.unit.processors.frame_stage import FrameStage

COUNTS = FrameStage(10, 10, total=agg.sum("v"), n=agg.count(), top=agg.top_n(2, "s")).operator


def kept(kind: pa.DataType) -> Deduplicate:
    return Deduplicate(("k",), pa.schema([("k", kind)]), within_ms=10)


def state(operator, **columns):
    """One row of its state; of other types where `columns` says so."""
    made = {
        field.name: columns.get(field.name, pa.array([None], field.type))
        for field in operator.state_schema
    }
    return pa.table({**made, **columns})


def test_state_of_the_same_schema_is_taken_as_it_is():
    for operator in (COUNTS, kept(pa.string())):
        table = state(operator)
        assert in_state_schema(table, operator, "s").equals(table.cast(operator.state_schema))


def test_whether_values_may_be_null_may_have_changed():
    """`coalesce` before a stage makes its key one that is never null; lists have it inside."""
    never = pa.schema([pa.field("k", pa.string(), nullable=False)])
    operator = Deduplicate(("k",), never, within_ms=10)
    found = in_state_schema(state(kept(pa.string()), k=pa.array(["a"])), operator, "s")
    assert found.schema == operator.state_schema
    back = in_state_schema(found, kept(pa.string()), "s")
    assert back.schema == kept(pa.string()).state_schema
    (name,) = [name for name in COUNTS.state_schema.names if name.startswith("__top")]
    fields = [pa.field(part, pa.string()) for part in ("rank", "value")]
    tops = pa.array([[{"rank": "a", "value": "b"}]], pa.list_(pa.field("item", pa.struct(fields))))
    found = in_state_schema(state(COUNTS, **{name: tops}), COUNTS, "s")
    assert found.schema == COUNTS.state_schema
    assert found.column(name).to_pylist() == tops.to_pylist()


def test_a_partial_of_another_type_is_refused():
    for other in (pa.array([7.0]), pa.array(["seven"]), pa.array([[7]])):
        with pytest.raises(SnapshotInvalidError, match=r"stage 's': .* '__sum\(v\)' as .* int64"):
            in_state_schema(state(COUNTS, **{"__sum(v)": other}), COUNTS, "s")


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(), pa.large_string()])
def test_a_key_of_another_type_is_refused(kind):
    with pytest.raises(SnapshotInvalidError, match=r"has 'k' as string, it is .* now\. Take th"):
        in_state_schema(state(kept(pa.string()), k=pa.array(["7"])), kept(kind), "s")


def test_a_column_that_was_not_saved_is_refused_and_one_that_is_not_needed_is_left_out():
    operator = kept(pa.string())
    table = state(operator)
    with pytest.raises(SnapshotInvalidError, match="has no column 'k', which it needs now"):
        in_state_schema(table.drop_columns(["k"]), operator, "s")
    more = table.append_column("gone", pa.array([1]))
    assert in_state_schema(more, operator, "s").column_names == operator.state_schema.names
