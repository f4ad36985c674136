"""Sorts and searches int64 columns, with numpy's plain sort where possible.

Plain sorts of int64 are vectorised: many times faster than `lexsort`, stable sorts, and the hashing
`unique` and `isin`. With millions of rows per step, sorting is most of an operator's time.
"""

from __future__ import annotations

import numpy as np

_BITS = 63


def order_by(*columns: np.ndarray) -> np.ndarray:
    """Row numbers by the first column, then by the next; equal rows keep the given order.

    Columns and row number are packed into one integer if they fit. Small ranges do: key numbers,
    the times of one step.
    """
    count = len(columns[0])
    if count == 0:
        return np.empty(0, np.int64)
    lows = [int(column.min()) for column in columns]
    bits = [
        (int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)
    ]
    row_bits = (count - 1).bit_length()
    if sum(bits) + row_bits > _BITS:
        return np.lexsort(columns[::-1])
    packed = np.zeros(count, np.int64)
    for column, low, width in zip(columns, lows, bits, strict=True):
        packed <<= width
        packed |= column - low
    packed <<= row_bits
    packed |= np.arange(count)
    packed.sort()
    packed &= (1 << row_bits) - 1
    return packed


def distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, ascending."""
    ordered = np.sort(values)
    found: np.ndarray = ordered[_is_first(ordered)]
    return found


def dense_codes(values: np.ndarray) -> np.ndarray:
    """Numbers the values from 0 in ascending order, without gaps; equal values, equal numbers."""
    order = np.argsort(values)
    codes = np.empty(len(values), np.int64)
    codes[order] = np.cumsum(_is_first(values[order])) - 1
    return codes


def search(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`np.searchsorted` with the values sorted first: otherwise every step of every search is a
    cache miss, which costs several times the sort."""
    if np.all(values[1:] >= values[:-1]):
        return np.searchsorted(ascending, values)
    order = order_by(values)
    places = np.empty(len(values), np.int64)
    places[order] = np.searchsorted(ascending, values[order])
    return places


def is_among(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Per value: True if it is one of `ascending`."""
    if len(ascending) == 0:
        return np.zeros(len(values), bool)
    places = search(ascending, values)
    found: np.ndarray = ascending[np.minimum(places, len(ascending) - 1)] == values
    return found


def _is_first(ordered: np.ndarray) -> np.ndarray:
    """Per value of a sorted column: True if it differs from the one before."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
