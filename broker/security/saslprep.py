"""SASLprep (RFC 4013): one spelling for names and passwords that look the same.

Built on the tables of the standard library's `stringprep` (Unicode 3.2, as the RFC demands).
"""

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class Unpreparable(ValueError):
    """The text holds characters that SASLprep forbids. The text itself is not in the message."""


def saslprep(text: str) -> str:
    """The prepared form of a stored string; raises `Unpreparable`."""
    if text.isascii():
        # No table but the one for control characters speaks of ASCII.
        if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
            raise Unpreparable("a control character is not allowed")
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(prohibited(character) for prohibited in _PROHIBITED):
            raise Unpreparable("a prohibited character is not allowed")
        if stringprep.in_table_a1(character):
            # Stored strings may not hold code points that Unicode 3.2 did not assign.
            raise Unpreparable("an unassigned code point is not allowed")
    _check_direction(prepared)
    return prepared


def name_problem(user: str) -> str | None:
    """Why `user` cannot be a user's name, or None."""
    if not user:
        return "a user name must not be empty"
    try:
        prepared = saslprep(user)
    except Unpreparable as error:
        return str(error)
    return None if prepared == user else "a user name must be in its SASLprep form"


def _check_direction(prepared: str) -> None:
    """RFC 3454 section 6: text that holds right-to-left characters is right-to-left throughout."""
    if not any(stringprep.in_table_d1(c) for c in prepared):
        return
    if any(stringprep.in_table_d2(c) for c in prepared):
        raise Unpreparable("left-to-right and right-to-left characters are mixed")
    if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
        raise Unpreparable("right-to-left text must begin and end with such a character")
