"""Bytes as people write them, and back. One pair of functions for the whole project.

Two families of units, never mixed: KiB, MiB, GiB, TiB count in 1024s, kB, MB, GB, TB in 1000s. A "16 GB" figure
that is really 16 GiB is off by 7 % (gpt4all#1685, torchtune#1346), so what doesn't say which it means is refused,
and so are bits (Gb, Gbit).
"""

from __future__ import annotations

import re
from fractions import Fraction

BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
DECIMAL_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
UNITS = {"B": 1, **BINARY_UNITS, **DECIMAL_UNITS}

_TEXT = re.compile(r"(?P<number>\d[\d,_]*(?:\.\d+)?|\.\d+)\s*(?P<unit>[^\d\s.,_]\w*)?")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_SPELLINGS = {**{unit: unit for unit in UNITS}, "KB": "kB", "bytes": "B", "byte": "B"}


def format_bytes(count: int, unit: str | None = None, *, digits: int = 2) -> str:
    """Write a number of bytes with its unit.

    Parameters
    ----------
    count
        Bytes, a whole number; negative for a difference.
    unit
        One of ``UNITS``. None takes the largest binary unit that leaves at least 1.
    digits
        Digits after the point. Whole bytes have none.

    Raises
    ------
    ValueError
        For a unit that isn't one (bits among them), or a count that isn't whole.

    Examples
    --------
    >>> format_bytes(16 * 10**9), format_bytes(16 * 10**9, "GB")
    ('14.90 GiB', '16.00 GB')
    >>> format_bytes(576), format_bytes(1536, digits=1)
    ('576 B', '1.5 KiB')
    """
    whole = _whole(count)
    if unit is None:
        # Rounding may carry: 1048575 bytes are "1.00 MiB", not "1024.00 KiB".
        size, unit = abs(whole), "B"
        for name in BINARY_UNITS:
            scaled = round(Fraction(size, UNITS[unit]), digits if unit != "B" else 0)
            if scaled < 1024:
                break
            unit = name
    else:
        unit = _unit(unit, f"unit={unit!r}")
    if unit == "B":
        return f"{whole:,} B"
    # Fractions, so that nothing is lost above 2**53; round() ties to even like format().
    value = round(Fraction(whole, UNITS[unit]), digits)
    return f"{_decimal(value, digits)} {unit}"


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes: ``"14.75 GiB"``, ``"16GB"``, ``"512 MiB"``; a whole number is bytes already.

    Fractions of a byte are rounded to the nearest whole one.

    Raises
    ------
    ValueError
        For no unit, a unit of bits, one that could be either ("16G"), a negative number, a comma that parts no
        thousands ("1,5 GB"), or no number.

    Examples
    --------
    >>> parse_bytes("14.75 GiB"), parse_bytes("16 GB")
    (15837691904, 16000000000)
    >>> parse_bytes("16 Gb")
    Traceback (most recent call last):
    ValueError: '16 Gb': Gb counts bits, expected bytes: write 16 GB (1000s) or 16 GiB (1024s), and divide bits by 8 first
    """
    if not isinstance(text, str):
        count = _whole(text)
        if count < 0:
            raise ValueError(f"{text!r} bytes: expected zero or more")
        return count
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r}: expected a number and a unit, such as '14.75 GiB' (1024s) or '16 GB' (1000s)"
        )
    number, unit = match["number"], match["unit"]
    if unit is None:
        raise ValueError(f"{text!r}: no unit. Write {number} B, {number} MiB, {number} GiB or {number} GB")
    if "," in number and not _THOUSANDS.fullmatch(number):
        decimal = (
            number.replace(",", ".")
            if number.count(",") == 1 and "." not in number
            else number.replace(",", "")
        )
        raise ValueError(f"{text!r}: a comma parts thousands here, as in 1,024 KiB. Write {decimal} {unit}")
    exact = Fraction(number.replace(",", "").replace("_", ""))
    return round(exact * UNITS[_unit(unit, repr(text), number)])


def _whole(count) -> int:
    if isinstance(count, bool) or int(count) != count:
        raise ValueError(f"{count!r} bytes: expected a whole number")
    return int(count)


def _decimal(value: Fraction, digits: int) -> str:
    units = round(value * 10**digits)
    sign, units = ("-" if units < 0 else ""), abs(units)
    whole, rest = divmod(units, 10**digits)
    return f"{sign}{whole:,}" + (f".{rest:0{digits}d}" if digits else "")


def _unit(unit: str, where: str, number: str = "16") -> str:
    if unit in _SPELLINGS:
        return _SPELLINGS[unit]
    letter = unit[0].upper()
    both = f"{number} {'k' if letter == 'K' else letter}B (1000s) or {number} {letter}iB (1024s)"
    scaled = letter in "KMGTP"
    if re.fullmatch(r"[kKMGTPmgtp]?i?b(it)?s?(ps)?|[kKMGTPmgtp]bits?", unit):
        what = f"{both}, and divide bits by 8 first" if scaled else f"{number} B, and divide bits by 8 first"
        raise ValueError(f"{where}: {unit} counts bits, expected bytes: write {what}")
    if scaled and unit.lower() in (letter.lower(), f"{letter.lower()}b", f"{letter.lower()}ib"):
        raise ValueError(f"{where}: {unit} doesn't say whether it counts in 1000s or 1024s: write {both}")
    raise ValueError(f"{where}: unknown unit {unit}, expected one of {', '.join(UNITS)}")
