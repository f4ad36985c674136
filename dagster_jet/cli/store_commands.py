"""``dagster-jet store``: shows, changes and repairs the store while jobs run.

Exit codes: 0 success, 1 store unsafe or damage found, 2 wrong call or store not usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_jet.cli.options import Target, on_store, refuse_password, text_in
from dagster_jet.cli.output import progress_bars, say, show, show_json, size
from dagster_jet.core.secret import named, text_of

if TYPE_CHECKING:
    from dagster_jet.store import Changes, OnProgress, Store, StoreStatus, Verified

store_app = typer.Typer(no_args_is_help=True, help="The replicated store.")

AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Let partitions that have no copy left begin empty. Jobs that had state in them do "
        "not start.",
    ),
]
_NAMED_MAX = 20


@store_app.command()
@on_store
def status(target: Target) -> None:
    """Shows the members, their reachability and data; exit code 1 if the store is unsafe."""
    with target.open_store() as store:
        found = store.status()
    _show_status(found, target)
    if not found.is_safe:
        raise typer.Exit(1)


@store_app.command()
@on_store
def verify(
    target: Target,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rewrite missing and damaged copies.")
    ] = False,
) -> None:
    """Reads and compares every copy of every key; exit code 1 if damage is found."""
    with target.open_store() as store, _interruptible("verify"), progress_bars() as bars:
        found = store.verify(repair=repair, on_progress=bars)
    if target.as_json:
        show_json({**asdict(found), "whole": found.is_whole})
    else:
        _show_verified(found)
    if not found.is_whole:
        raise typer.Exit(1)


@store_app.command()
@on_store
def repair(target: Target, accept_loss: AcceptLossOption = False) -> None:
    """Repairs the store: finishes an interrupted change, restores members that lost their data,
    removes members that do not answer, and compares all copies."""
    _change(target, lambda store, bars: store.repair(accept_loss=accept_loss, on_progress=bars))


@store_app.command()
@on_store
def add(target: Target, url: Annotated[str, typer.Argument(help="The member's URL.")]) -> None:
    """Adds a new member and gives it its share of the data.

    Pass a URL with a password as env:NAME of a variable, or as @FILE.
    """
    refuse_password([url])
    url = text_of(named(text_in(url).strip()))
    _change(target, lambda store, bars: store.add_member(url, on_progress=bars))


@store_app.command()
@on_store
def remove(
    target: Target,
    member: Annotated[str, typer.Argument(help="The member, as 'store status' names it.")],
    accept_loss: AcceptLossOption = False,
) -> None:
    """Copies the data of a member to the others and removes it from the store."""

    from dagster_jet.store import member_id_of

    member_id = member_id_of(member)
    _change(
        target,
        lambda store, bars: store.remove_member(
            member_id, accept_loss=accept_loss, on_progress=bars
        ),
    )


@store_app.command("rotate-keys")
@on_store
def rotate_keys(target: Target) -> None:
    """Encrypts values and registers with the newest key; exit code 1 if values remain.

    This includes values that are not encrypted yet.
    """
    with (
        target.open_store(accept_unencrypted=True) as store,
        _interruptible("rotate-keys"),
        progress_bars() as bars,
    ):
        done = store.rotate_keys(on_progress=bars)
    if target.as_json:
        show_json(asdict(done))
    else:
        say(f"{done.copies} copies were encrypted anew, {done.left} are left as they were.")
        if done.left:
            say("Repair them with 'dagster-jet store verify --repair', then repeat this.")
    if done.left:
        raise typer.Exit(1)


@store_app.command()
@on_store
def gc(target: Target) -> None:
    """Removes snapshots that no job needs, remains of deleted or unfinished exports, and copies on
    members that do not hold them."""

    from dagster_jet.exports.export_list import collect_export_garbage
    from dagster_jet.ownership.garbage import collect_garbage

    with target.open_store() as store, _interruptible("gc"), progress_bars() as bars:
        jobs = collect_garbage(store)
        of_exports = collect_export_garbage(store)
        dropped = store.drop_orphans(on_progress=bars)
    if target.as_json:
        removed = {"jobs": [asdict(job) for job in jobs], "of_exports": of_exports}
        show_json({**removed, "leftover_copies": dropped})
        return
    rows = [{"job": j.job, "entries removed": j.removed, "skipped": j.skipped} for j in jobs]
    show(rows, title="Snapshots", as_json=False)
    if of_exports:
        say(f"{of_exports} entries were of exports that are deleted or were never finished.")
    say(f"{dropped} copies were on members that do not hold them any more.")


def _change(target: Target, change: Callable[[Store, OnProgress], Changes]) -> None:
    with target.open_store() as store:
        with _interruptible("repair"), progress_bars() as bars:
            changes = change(store, bars)
        found = store.status()
    if target.as_json:
        document = {**asdict(changes), "safe": found.is_safe}
        if changes.verified is not None:
            document["verified"]["whole"] = changes.verified.is_whole
        show_json(document)
    else:
        _show_changes(changes)
        _show_status(found, target)
    whole = changes.verified is None or changes.verified.is_whole
    if not found.is_safe or not whole or changes.migrated.damaged:
        raise typer.Exit(1)


@contextmanager
def _interruptible(goes_on: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(
            f"Interrupted. Nothing is lost: 'dagster-jet store {goes_on}' continues from here. "
            "'dagster-jet store status' shows whether a change of the members had begun."
        )
        raise typer.Exit(1) from None


def _show_status(found: StoreStatus, target: Target) -> None:
    from dagster_jet.store import member_id_of

    if target.as_json:
        show_json({**asdict(found), "safe": found.is_safe, "notices": found.notices})
        return
    rows: list[dict[str, Any]] = [
        {
            "member": member.member_id,
            "reachable": "yes" if member.reachable else "no",
            "primaries": member.primaries,
            "backups": member.backups,
            "receiving": member.receiving or None,
            "leaving": "yes" if member.is_leaving else None,
            **({"damaged": member.damaged or None} if found.damaged else {}),
        }
        for member in found.members
    ]
    show(rows, title="Store", as_json=False)
    lacking = len(found.under_replicated)
    if found.is_safe:
        say("Safe: every partition has all its replicas.")
    elif lacking or not found.damaged:
        say(f"Not safe: {lacking} partitions have fewer replicas than they should.")
    else:
        say("Not safe: copies are damaged.")
    for member in found.members:
        if member.error is not None:
            say(member.error)
    configured = {member_id_of(text_of(named(url))) for url in target.urls}
    for member in found.members:
        if member.member_id not in configured:
            say(f"{member.member_id} is a member, but not configured here: add its URL.")
    for notice in found.notices:
        say(notice)


def _show_verified(found: Verified) -> None:
    row = {
        "keys": found.keys,
        "copies": found.copies,
        "read": size(found.bytes),
        "missing": found.missing,
        "damaged": found.damaged,
        "differing": found.differing,
        "repaired": found.repaired,
        "lost": len(found.lost),
        "undecided": len(found.undecided),
    }
    show([row], title="Copies", as_json=False)
    _list("No good copy is left of", found.lost)
    _list("Cannot be read", found.unreadable)
    _list(
        "Copies differ, and it is not known which one is right (put the key again)", found.undecided
    )
    for member_id, error in found.unreachable.items():
        say(f"{member_id} could not be read: {error}")


def _show_changes(changes: Changes) -> None:
    for what, members in (
        ("joined", changes.joined),
        ("was given its data again", changes.readmitted),
        ("has left", changes.left),
    ):
        for member_id in members:
            say(f"{member_id} {what}.")
    migrated = changes.migrated
    say(
        f"{migrated.keys} copies ({size(migrated.bytes)}) were made in {migrated.partitions} "
        f"partitions."
    )
    _list("No good copy was found of", migrated.damaged)
    if changes.joined:
        say("Add its URL to the configuration of every job before the job's next start.")
    if changes.left:
        say("Its URL may be removed from the configuration now.")
    if changes.verified is not None:
        _show_verified(changes.verified)


def _list(what: str, names: list[str]) -> None:
    for name in names[:_NAMED_MAX]:
        say(f"{what} {name}.")
    if len(names) > _NAMED_MAX:
        say(f"{what} {len(names) - _NAMED_MAX} more.")
