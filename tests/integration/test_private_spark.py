"""The canary: each class and method that is private to Spark and read here is used once. What a new
version of Spark has changed is named by the tests that fail; `spark/plans` and `spark/cluster` are
the places to change."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql import functions as F

import dagster_jet
from dagster_jet.spark.cluster import executors
from dagster_jet.spark.cluster import session as sessions
from dagster_jet.spark.plans import repeatable, row_by_row, used_columns
from dagster_jet.spark.plans.cached import Cache
from dagster_jet.spark.plans.counters import Counters
from dagster_jet.spark.plans.nodes import (
    analyzed,
    children,
    elements,
    frame_of,
    kind,
    leaves,
    optimized,
    physical,
    schema_json,
)
from dagster_jet.spark.plans.union import union_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALYST, EXECUTION = "org.apache.spark.sql.catalyst", "org.apache.spark.sql.execution"
PHYSICAL = [
    EXECUTION,
    *(f"{EXECUTION}.{one}" for one in ("aggregate", "columnar", "exchange", "joins", "python")),
]
CLASSES = {
    **{name: [f"{CATALYST}.plans.logical.{name}"] for name in row_by_row._KINDS},
    **{
        f"{name}Exec": [f"{EXECUTION}.{name}", *(f"{package}.{name}Exec" for package in PHYSICAL)]
        for name in repeatable._RUN_ANEW | repeatable._OF_TABLES | repeatable._FUNCTIONS
    },
    **{name: [f"{p}.{name}" for p in PHYSICAL] for name in used_columns._KNOWN_LEAVES},
    **{name: [f"{CATALYST}.expressions.{name}"] for name in repeatable._NUMBERS},
    "Alias": [f"{CATALYST}.expressions.Alias"],
    "AttributeReference": [f"{CATALYST}.expressions.AttributeReference"],
    "BroadcastExchangeExec": [f"{EXECUTION}.exchange.BroadcastExchangeExec"],
    "Join": [f"{CATALYST}.plans.logical.Join"],
    "Union": [f"{CATALYST}.plans.logical.Union"],
    "Project": [f"{CATALYST}.plans.logical.Project"],
    "Range": [f"{CATALYST}.plans.logical.Range"],
    **{name.rpartition(".")[2]: [name] for name in sessions.LOOKED_UP_OFTEN},
}


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_class_is_there(spark: SparkSession, name: str) -> None:
    java = spark._jvm.java.lang
    loader = java.Thread.currentThread().getContextClassLoader()

    def is_there(full: str) -> bool:
        try:
            return bool(java.Class.forName(full, False, loader))
        except Exception:  # Py4J's, of whatever class
            return False

    assert any(map(is_there, CLASSES[name])), (
        f"Spark {pyspark.__version__} has no class {' or '.join(CLASSES[name])}"
    )


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Rows of one file with the columns k, v and w."""
    path = str(tmp_path_factory.mktemp("rows") / "in")
    spark.range(3).selectExpr("id AS k", "id AS v", "id AS w").write.parquet(path)
    return spark.read.parquet(path)


def java(frame: DataFrame) -> Any:
    return frame.sparkSession._jvm


def catalyst(frame: DataFrame, name: str) -> Any:
    return getattr(java(frame), f"{CATALYST}.{name}")


def chosen(frame: DataFrame) -> Any:
    """The plan of a projection with an alias, for its methods."""
    return analyzed(frame.select("k", F.col("v").alias("x")))


def expression(frame: DataFrame) -> Any:
    return elements(chosen(frame).projectList())[1]


def scan(frame: DataFrame) -> Any:
    (leaf,) = leaves(physical(frame.select("k"), prepared=False))
    return leaf


def scan_of_cache(frame: DataFrame) -> Any:
    (leaf,) = leaves(physical(Cache(frame.select("k")).rows, prepared=False))
    return leaf


def counted(frame: DataFrame) -> Counters:
    action = frame.observe("seen", F.count(F.lit(1)).alias("rows"))
    assert action.collect()
    return Counters(action)


def as_json(frame: DataFrame) -> list[dict[str, Any]]:
    plan: list[dict[str, Any]] = json.loads(chosen(frame).toJSON())
    return plan


def status(frame: DataFrame) -> Any:
    return frame.sparkSession.sparkContext._jsc.sc()


METHODS: dict[str, tuple[Callable[[DataFrame], Any], Any]] = {
    "Dataset.schema().json()": (lambda f: json.loads(schema_json(f))["type"], "struct"),
    "QueryExecution.analyzed": (lambda f: kind(analyzed(f.select("k"))), "Project"),
    "QueryExecution.optimizedPlan": (lambda f: kind(optimized(f.distinct())), "Aggregate"),
    "QueryExecution.sparkPlan": (lambda f: kind(scan(f)), "FileSourceScanExec"),
    "QueryExecution.executedPlan": (
        lambda f: kind(physical(f.sparkSession.range(2).filter("id > 0"), prepared=True)),
        "WholeStageCodegenExec",
    ),
    "QueryExecution.observedMetrics": (lambda f: counted(f).count("seen"), 3),
    "Union": (lambda f: union_all([f, f, f]).count(), 9),
    "Dataset.ofRows": (lambda f: kind(analyzed(frame_of(f.sparkSession, chosen(f)))), "Project"),
    "InMemoryRelation.apply, withOutput": (
        lambda f: kind(analyzed(Cache(f.select("v")).rows)),
        "InMemoryRelation",
    ),
    "CachedRDDBuilder.clearCache": (lambda f: Cache(f).clear(), None),
    "InMemoryTableScanExec.relation().cachedPlan": (
        lambda f: kind(scan_of_cache(f).relation().cachedPlan()),
        "WholeStageCodegenExec",
    ),
    "TreeNode.children": (lambda f: [kind(one) for one in children(chosen(f))] != [], True),
    "QueryPlan.subqueries": (
        lambda f: elements(chosen(f).subqueries()),
        [],
    ),
    "QueryPlan.output": (lambda f: [o.name() for o in elements(chosen(f).output())], ["k", "x"]),
    "QueryPlan.expressions": (lambda f: len(elements(chosen(f).expressions())), 2),
    "QueryPlan.references": (
        lambda f: chosen(f).references().contains(elements(analyzed(f).output())[0]),
        True,
    ),
    "QueryPlan.sameResult": (lambda f: chosen(f).sameResult(chosen(f)), True),
    "QueryPlan.deterministic": (lambda f: chosen(f).deterministic(), True),
    "TreeNode.equals": (lambda f: chosen(f).child().equals(analyzed(f)), True),
    "TreeNode.fastEquals": (lambda f: analyzed(f).fastEquals(analyzed(f)), True),
    "TreeNode.containsPattern": (
        lambda f: analyzed(f.select(F.current_timestamp())).containsPattern(
            catalyst(f, "trees.TreePattern").CURRENT_LIKE()
        ),
        True,
    ),
    "TreePattern.VARIABLE_REFERENCE": (
        lambda f: chosen(f).containsPattern(catalyst(f, "trees.TreePattern").VARIABLE_REFERENCE()),
        False,
    ),
    "TreePattern.PLAN_EXPRESSION": (
        lambda f: chosen(f).containsPattern(catalyst(f, "trees.TreePattern").PLAN_EXPRESSION()),
        False,
    ),
    "ReplaceExpressions.apply": (
        lambda f: kind(catalyst(f, "optimizer.ReplaceExpressions").apply(chosen(f))),
        "Project",
    ),
    "SpecialDatetimeValues.apply": (
        lambda f: kind(catalyst(f, "optimizer.SpecialDatetimeValues").apply(chosen(f))),
        "Project",
    ),
    "Project.projectList": (lambda f: kind(expression(f)), "Alias"),
    "Alias.child": (lambda f: kind(expression(f).child()), "AttributeReference"),
    "Expression.children": (lambda f: len(elements(expression(f).children())), 1),
    "Expression.deterministic": (lambda f: expression(f).deterministic(), True),
    "Expression.semanticEquals": (lambda f: expression(f).semanticEquals(expression(f)), False),
    "NamedExpression.exprId": (lambda f: expression(f).exprId().id() >= 0, True),
    "TreeNode.toJSON: class": (lambda f: as_json(f)[0]["class"].endswith(".Project"), True),
    "TreeNode.toJSON: num-children": (lambda f: as_json(f)[0]["num-children"], 1),
    "TreeNode.toJSON: projectList, exprId": (
        lambda f: as_json(f)[0]["projectList"][1][0]["exprId"]["id"] >= 0,
        True,
    ),
    "FileSourceScanExec.requiredSchema": (
        lambda f: [one["name"] for one in json.loads(scan(f).requiredSchema().json())["fields"]],
        ["k"],
    ),
    "HadoopFsRelation.location().rootPaths": (
        lambda f: scan(f).relation().location().rootPaths().head().toString().endswith("/in"),
        True,
    ),
    "classic.SparkSession.setActiveSession": (lambda f: sessions.activate(f.sparkSession), None),
    "SparkSession.createDataFrame, parseDataType": (
        lambda f: sessions.empty_frame(f.sparkSession, f.schema).columns,
        ["k", "v", "w"],
    ),
    "SparkContext.getExecutorIds": (lambda f: executors.executors(f.sparkSession), {"driver"}),
    # Other tests of this process lose executors; `test_executor_watch` counts them.
    "AppStatusStore.executorList": (lambda f: executors.executors_dead(f.sparkSession) >= 0, True),
    "ExecutorSummary.maxMemory, id": (lambda f: executors.memory_bytes(f.sparkSession) > 0, True),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_method_answers_as_before(rows: DataFrame, name: str) -> None:
    ask, expected = METHODS[name]
    try:
        found = ask(rows)
    except Exception as error:
        raise AssertionError(f"Spark {pyspark.__version__} has changed {name}") from error
    assert found == expected, f"Spark {pyspark.__version__} has changed {name}"


PRIVATE = {"_jdf", "_jvm", "_jsc", "_jsparkSession", "queryExecution"}


def test_nothing_else_touches_the_jvm() -> None:
    package = Path(dagster_jet.__file__).parent
    touching = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    }
    elsewhere = {path for path in touching if not path.startswith("spark/plans/")}
    assert elsewhere == {"spark/cluster/executors.py", "spark/cluster/session.py"}
