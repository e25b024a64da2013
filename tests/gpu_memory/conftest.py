"""Simulations that several tests look at, run once."""

import functools

import pytest
from plainly import closed_form, simulated


@pytest.fixture(scope="session")
def simulate():
    return functools.cache(simulated)


@pytest.fixture(scope="session")
def compute():
    return functools.cache(closed_form)
