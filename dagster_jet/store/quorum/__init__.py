"""The quorum register over real members: the rim around ``store/register`` that does the I/O.

acceptor_on_member.py  one request to one member, by compare-and-set
driver.py              an operation's rounds to all members at once
client.py              RegisterClient, OwnedRegister: what the rest of the library uses
roll_call.py           finds out who came back older
movement.py            moves registers to a new set of members
discovery.py           finds out which members a store has now
"""

from dagster_jet.store.quorum.client import OwnedRegister, RegisterClient, RegisterValue
from dagster_jet.store.quorum.discovery import Discovered, discover_configuration
from dagster_jet.store.quorum.movement import list_registers, move_register, move_registers
from dagster_jet.store.quorum.rolled_back_members import disown_rolled_back_members
from dagster_jet.store.register import Ballot, Configuration

__all__ = [
    "Ballot",
    "Configuration",
    "Discovered",
    "OwnedRegister",
    "RegisterClient",
    "RegisterValue",
    "discover_configuration",
    "disown_rolled_back_members",
    "list_registers",
    "move_register",
    "move_registers",
]
