"""The table of a DynamoDB member: created if it is missing, checked before its first use."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import ClientError

from dagster_jet.aws.access import AwsAccess, code_of
from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.system.backoff import attempts

_CREATE_SECONDS_MAX = 60


class DynamoDbTable:
    """A table with two keys, ``pk`` and ``sk``, both strings."""

    def __init__(self, access: AwsAccess, name: str, member_id: str, *, may_create: bool) -> None:
        self._aws, self._name, self._member_id = access, name, member_id
        self._may_create = may_create
        self._is_ready = False

    def make_ready(self) -> None:
        """Checks the table before its first use; creates it if it is missing.

        Raises:
            StoreUnavailableError: the table is not ready in time.
            StoreUnwritableError: the table has other keys.
        """
        if self._is_ready:
            return
        begun = time.monotonic()
        for _ in attempts(1_000, base_s=0.1, cap_s=2, budget_s=_CREATE_SECONDS_MAX):
            table = self._described()
            if table is None:
                self._create()
            elif table["TableStatus"] in ("ACTIVE", "UPDATING"):
                self._check(table)
                self._is_ready = True
                return
        raise StoreUnavailableError(
            f"the table of the store member {self._member_id} is not ready after "
            f"{time.monotonic() - begun:.0f} seconds."
        )

    def _described(self) -> dict[str, Any] | None:
        try:
            answer = self._aws.repeating.describe_table(TableName=self._name)
        except ClientError as error:
            if code_of(error) == "ResourceNotFoundException" and self._may_create:
                return None
            raise
        table: dict[str, Any] = answer["Table"]
        return table

    def _create(self) -> None:
        try:
            self._aws.repeating.create_table(
                TableName=self._name,
                KeySchema=[
                    {"AttributeName": "pk", "KeyType": "HASH"},
                    {"AttributeName": "sk", "KeyType": "RANGE"},
                ],
                AttributeDefinitions=[
                    {"AttributeName": "pk", "AttributeType": "S"},
                    {"AttributeName": "sk", "AttributeType": "S"},
                ],
                BillingMode="PAY_PER_REQUEST",
            )
        except ClientError as error:
            if code_of(error) != "ResourceInUseException":  # another process is creating it
                raise

    def _check(self, table: dict[str, Any]) -> None:
        keys = {(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]}
        types = {
            one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]
        }
        is_ours = types.get("pk") == types.get("sk") == "S"
        if keys != {("pk", "HASH"), ("sk", "RANGE")} or not is_ours:
            raise StoreUnwritableError(
                f"the table of the store member {self._member_id} does not have the keys pk and "
                "sk, both strings: it belongs to another application.",
                cure="Name another table; it is created when it does not exist.",
            )
