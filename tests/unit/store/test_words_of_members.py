"""Errors of all kinds of members that are full, read-only, damaged, throttled or away, and the
condition that each means for a job (`store_reactions`)."""

import errno
import os
from pathlib import Path

import lmdb
import pytest
import redis
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from dagster_jet.errors import StoreError
from dagster_jet.snapshot.store_reactions import Condition, condition_of
from dagster_jet.store.members.aws import member_access, parsed
from dagster_jet.store.members.lmdb_environment import LmdbEnvironment
from dagster_jet.store.members.redis_client import RedisClient

UNWRITABLE = Condition.FULL
"""Condition of a member that cannot be written; READ_ONLY looks the same."""
AWS_WORDS = {
    "XMinioStorageFull": UNWRITABLE,
    "QuotaExceeded": UNWRITABLE,
    "XMinioAdminBucketQuotaExceeded": UNWRITABLE,
    "ItemCollectionSizeLimitExceededException": UNWRITABLE,
    "AccessDenied": UNWRITABLE,
    "ExpiredToken": UNWRITABLE,
    "NoSuchBucket": UNWRITABLE,
    "SlowDown": Condition.AWAY,
    "ThrottlingException": Condition.AWAY,
    "RequestLimitExceeded": Condition.AWAY,
    "ProvisionedThroughputExceededException": Condition.AWAY,
    "InternalServerError": Condition.AWAY,
    "ServiceUnavailable": Condition.AWAY,
}


@pytest.mark.parametrize("service", ["s3", "dynamodb"])
@pytest.mark.parametrize("code", AWS_WORDS)
def test_words_of_aws(service: str, code: str) -> None:
    access = member_access(service, parsed(f"{service}://place", (), ""), f"{service}://place", 1)
    answer = {"Error": {"Code": code, "Message": "it says why"}}
    words = f"{service}://place.*{code}: it says why"
    with pytest.raises(StoreError, match=words) as said, access.errors_named():
        raise ClientError(answer, "Put")
    assert condition_of(said.value) is AWS_WORDS[code]


@pytest.mark.parametrize("error", [ConnectTimeoutError, ReadTimeoutError])
def test_silence_of_aws(error: type[Exception]) -> None:
    access = member_access("s3", parsed("s3://place", (), ""), "s3://place", 1)
    with pytest.raises(StoreError) as said, access.errors_named():
        raise error(endpoint_url="http://place")  # type: ignore[call-arg]
    assert condition_of(said.value) is Condition.AWAY


REDIS_WORDS = [
    (redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), UNWRITABLE),
    (redis.exceptions.OutOfMemoryError("command not allowed"), UNWRITABLE),
    (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots, but"), UNWRITABLE),
    (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), UNWRITABLE),
    (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), UNWRITABLE),
    (redis.exceptions.NoPermissionError("this user has no permissions"), UNWRITABLE),
    (redis.exceptions.BusyLoadingError("LOADING Redis is loading"), Condition.AWAY),
    (redis.exceptions.ConnectionError("max number of clients reached"), Condition.AWAY),
    (redis.exceptions.TimeoutError("Timeout reading from socket"), Condition.AWAY),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), Condition.AWAY),
]


@pytest.mark.parametrize(("error", "condition"), REDIS_WORDS, ids=lambda one: str(one)[:20])
def test_words_of_redis(error: Exception, condition: Condition) -> None:
    said = RedisClient("redis://place:1/0")._named(error, is_doubtful=False)
    assert condition_of(said) is condition


FOLDER_WORDS = [
    *((OSError(number, os.strerror(number)), UNWRITABLE)
      for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)),
    *((lmdb.Error(f"/place: {os.strerror(number)}"), UNWRITABLE)
      for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)),
    (lmdb.DiskError("/place: no space"), UNWRITABLE),
    (lmdb.MapFullError("mdb_put: MDB_MAP_FULL"), UNWRITABLE),
    (lmdb.ReadonlyError("mdb_txn_begin"), UNWRITABLE),
    (lmdb.CorruptedError("mdb_get: MDB_CORRUPTED"), Condition.AWAY),
    (lmdb.PanicError("mdb_txn_begin: MDB_PANIC"), Condition.AWAY),
    (TimeoutError("another process has held it for 10 s"), Condition.AWAY),
]  # fmt: skip


@pytest.mark.parametrize(("error", "condition"), FOLDER_WORDS, ids=lambda one: str(one)[:40])
def test_words_of_a_folder(tmp_path: Path, error: Exception, condition: Condition) -> None:
    environment = LmdbEnvironment(str(tmp_path))
    with (
        pytest.raises(StoreError, match=str(tmp_path)) as said,
        environment.errors_named(write=True),
    ):
        raise error
    assert condition_of(said.value) is condition
