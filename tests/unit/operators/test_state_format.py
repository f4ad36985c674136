"""State of users' code is read as plain values; a pickle only if the pipeline asks for it."""

import pickle
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import aggregates as agg
from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import ItemProcessor, PartitionKey
from dagster_jet.errors import ConfigurationError, JetError, StoreMismatchError
from dagster_jet.operators.aggregates.computation import computation
from dagster_jet.operators.operator import MemoryState, Operator, StepInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.user.spark_processor import SparkProcessor
from tests.unit.operators.stepping import as_input

PLAIN, PICKLE = StateFormat.PLAIN, StateFormat.PICKLE
ROWS = pa.schema([("k", pa.string())])
FORMATS = [PLAIN, PICKLE]
ran: list[str] = []


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (ran.append, ("code of the store",))


EVIL = pickle.dumps(Runs(), protocol=5)


class Keeps(ItemProcessor):
    def init(self, outbox: Any, context: Any) -> None:
        super().init(outbox, context)
        self.count = 0

    def process_item(self, ordinal: int, item: Any) -> bool:
        self.count += 1
        return True

    def save_to_snapshot(self) -> bool:
        return bool(self.outbox.offer_to_snapshot(PartitionKey(0, "n"), (self.count,)))

    def restore_from_snapshot(self, inbox: Any) -> bool:
        for _, (count,) in inbox.drain():
            self.count = count
        return True


def count(state: Any, row: dict[str, Any]) -> dict[str, Any]:
    state.value += 1
    return {"k": f"{row['k']}{state.value}"}


def mapped(state_format: StateFormat) -> Operator:
    return StatefulMap("m", ("k",), ROWS, ROWS, count, int, state_format=state_format)


def processor(state_format: StateFormat) -> Operator:
    return SparkProcessor(
        stage="p", supplier=Keeps, row_schema=ROWS, output_schema=ROWS, row_keys=("k",),
        in_batches=False, partition_count=1, state_format=state_format,
    )  # fmt: skip


def after(operator: Operator, state: MemoryState, version: int) -> pa.Table:
    row = as_input(
        [{"__partition": 0, "__hash": 7, "__time": 0, "k": "a"}], operator.input_schemas[0]
    )
    step = operator.step(StepInput((row,), None, None, version), state)
    state.append(step.delta, None)
    return state.scan()


def binary_column(saved: pa.Table) -> str:
    return "__state" if "__state" in saved.column_names else "__value"


@pytest.mark.parametrize("operator_of", [mapped, processor])
def test_code_that_someone_wrote_into_the_store_does_not_run(operator_of: Any) -> None:
    """Failed before: whoever could write to a member ran code on the executors."""
    pickled = 'pickled.*state_format="pickle"'
    for evil, said in ((EVIL, "begins with byte"), (b"\x01" + EVIL, pickled)):
        state = MemoryState(operator_of(PLAIN))
        saved = after(operator_of(PLAIN), state, 1)
        binary = binary_column(saved)
        column = saved.schema.get_field_index(binary)
        forged = saved.set_column(column, binary, pa.array([evil], pa.binary()))
        state = MemoryState(operator_of(PLAIN))
        state.append(forged, None)
        with pytest.raises(StoreMismatchError, match=said):
            after(operator_of(PLAIN), state, 2)
    assert ran == []


def test_an_accumulator_that_someone_wrote_does_not_run() -> None:
    custom = agg.custom(
        int, lambda a, row: a, lambda a, b: a + b, int, columns=["v"], result_type="bigint"
    )
    with pytest.raises(StoreMismatchError, match="pickled"):
        computation(custom).finish([pa.array([b"\x01" + EVIL], pa.binary())])
    assert ran == []


@pytest.mark.parametrize("operator_of", [mapped, processor])
@pytest.mark.parametrize("before", FORMATS)
def test_pickles_are_asked_for_by_name_and_plain_values_are_always_read(
    operator_of: Any, before: StateFormat
) -> None:
    state = MemoryState(operator_of(before))
    after(operator_of(before), state, 1)
    saved = after(operator_of(PICKLE), state, 2)
    (kept,) = (value for value in saved.column(binary_column(saved)).to_pylist() if value)
    assert kept[:1] == b"\x01"  # saved anew as a pickle, and once


@pytest.mark.parametrize("state_format", FORMATS)
def test_what_cannot_be_saved_names_its_cure(state_format: StateFormat) -> None:
    with pytest.raises(JetError, match="plain values"):
        mapper = StatefulMap("m", ("k",), ROWS, ROWS, count, int, state_format=state_format)
        object.__setattr__(mapper, "create", lambda: lambda: None)
        object.__setattr__(mapper, "function", lambda state, row: None)
        after(mapper, MemoryState(mapper), 1)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="state_format: 'json'"):
        agg.custom(int, max, max, int, columns=["v"], result_type="bigint", state_format="json")
