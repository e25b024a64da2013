"""The exercise of 00_start_here, which shows what a check says."""

from __future__ import annotations

from onegpu.exercises.exercise import Case, Exercise, Mistake


def weights_bytes(parameters: int, bits: int) -> int:
    """Return the bytes that a model's weights take, rounded up to whole bytes."""
    return -(-parameters * bits // 8)


EXERCISES = (
    Exercise(
        "0.1",
        "bytes of a model's weights",
        weights_bytes,
        level="warm-up",
        difficulty=1,
        importance=4,
        minutes=5,
        hints=(
            "How many bits are there in all? And how many of them make one byte?",
            "Multiply parameters by bits first, then divide by 8, and round up: a byte that is only "
            "half used is a whole byte. Stay with whole numbers all the way.",
        ),
        lesson="Write it as a function",
        cases=(
            Case(
                "a model of 1,000 parameters in 32 bits",
                (1000, 32),
                "Each parameter takes `bits` bits, and 8 bits are a byte.",
                expected=4000,
                mistakes=(
                    Mistake(32000, "These are bits. A byte has 8 of them."),
                    Mistake(
                        lambda got: isinstance(got, float) and got == 4000,
                        "`/` gives a float even where nothing is left over.",
                    ),
                    Mistake(1000, "One byte a parameter is right for 8 bits only: use `bits`."),
                    Mistake(256000, "Multiplied by 8 instead of divided: bits are smaller than bytes."),
                    Mistake(lambda got: 0 < got < 10, "This is in KiB or smaller units: give plain bytes."),
                ),
            ),
            Case(
                "SmolLM2-135M in 4 bits",
                (134_515_008, 4),
                "Half a byte a parameter. bits // 8 is 0 for 4 bits: multiply first, then divide.",
                expected=67_257_504,
            ),
            Case(
                "three parameters in 4 bits",
                (3, 4),
                "Three times 4 bits are 12 bits: one byte isn't enough, so it is 2 bytes. Round up.",
                expected=2,
            ),
        ),
    ),
)
