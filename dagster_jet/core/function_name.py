"""Names of users' functions."""

from __future__ import annotations

from functools import partial


def function_name(function: object) -> str:
    """Returns the name of a function, of the one in a `partial`, or of the class of another object
    that can be called. It is equal in all processes, which the text of an object is not: that has
    an address.

    Example:
        >>> function_name(partial(partial(sorted, key=len), [1]))
        'sorted'
    """
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name
