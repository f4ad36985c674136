"""The quorum register, checked three ways, and with mistakes planted on purpose.

history.py      what was called and answered; the judge: is it linearizable?
acceptors.py    a member of the simulation: states, floor, crashes, lost disks
world.py        one seed's history: owners, readers, movers, and a network that loses and repeats
scope.py        all histories of a few processes on three members: every delivery, every loss
process.py      an owner or reader as a real process, to be killed and frozen
mutants.py      the planted mistakes
"""
