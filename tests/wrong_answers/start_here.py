"""What people hand in for the exercise of 00_start_here."""

import math

from onegpu.exercises.answers import Answers

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right
SMALL = "a model of 1,000 parameters in 32 bits"


@wrong("0.1", "gives bits", case=SMALL, says="These are bits")
def in_bits(parameters, bits):
    return parameters * bits


@wrong("0.1", "divides with /", case=SMALL, says="`/` gives a float")
def as_float(parameters, bits):
    return parameters * bits / 8


@wrong("0.1", "one byte a parameter", case=SMALL, says="for 8 bits only")
def one_byte(parameters, bits):
    return parameters


@wrong("0.1", "multiplies by 8", case=SMALL, says="instead of divided")
def times_eight(parameters, bits):
    return parameters * bits * 8


@wrong("0.1", "gives KiB", case=SMALL, says="plain bytes")
def in_kib(parameters, bits):
    return parameters * bits // 8 // 1024


@wrong("0.1", "divides first", case="SmolLM2-135M in 4 bits", says="multiply first")
def divides_first(parameters, bits):
    return parameters * (bits // 8)


@wrong("0.1", "rounds down", case="three parameters in 4 bits", says="Round up")
def rounds_down(parameters, bits):
    return parameters * bits // 8


@right("0.1", "math.ceil")
def with_ceil(parameters, bits):
    return math.ceil(parameters * bits / 8)


@right("0.1", "adds 7 before it divides")
def adds_seven(parameters, bits):
    return (parameters * bits + 7) // 8


@right("0.1", "divmod")
def with_divmod(parameters, bits):
    whole, rest = divmod(parameters * bits, 8)
    return whole + (rest > 0)


ANSWERS.statements(
    "0.1",
    {
        "bytes": in_bits,
        "not KiB": in_kib,
        "bits bits a parameter": one_byte,
        "8 bits are a byte": times_eight,
        "also for fewer than 8 bits": divides_first,
        "rounded up to whole bytes": rounds_down,
        "an int": as_float,
    },
)
