"""What ``TokenCounts`` derives from the lengths, and how it prints."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onegpu.token_counting import TokenCounts

lengths_lists = st.lists(st.integers(0, 3000), min_size=1, max_size=50)


def counts_of(lengths, **more):
    by_length = {n: lengths.count(n) for n in sorted(set(lengths))}
    return TokenCounts(len(lengths), sum(lengths), None, None, by_length, **more)


@given(lengths_lists)
def test_mean_extremes_and_percentiles_are_numpys(lengths):
    counts = counts_of(lengths)
    assert (counts.shortest, counts.longest) == (min(lengths), max(lengths))
    assert counts.mean == pytest.approx(np.mean(lengths))
    for q, found in counts.percentiles.items():
        assert found == np.percentile(lengths, q, method="inverted_cdf")


@given(lengths_lists, st.integers(1, 20))
def test_histogram_holds_each_row_once_in_few_round_bins(lengths, bins):
    found = counts_of(lengths).histogram(bins)
    assert len(found) <= bins
    assert sum(n for *_, n in found) == len(lengths)
    for low, high, n in found:
        assert n == sum(low <= length <= high for length in lengths)
    width = found[0][1] - found[0][0] + 1
    assert width / 10 ** math.floor(math.log10(width)) in (1, 2, 5)


def test_percentile_out_of_range_is_refused():
    with pytest.raises(ValueError, match="percentile 101: expected a number from 0 to 100"):
        counts_of([1]).percentile(101)


def test_null_rows_have_no_length():
    counts = TokenCounts(3, 4, None, None, {4: 1}, null_rows=2)
    assert (counts.mean, counts.shortest, counts.percentile(50)) == (4.0, 4, 4)


def test_print_names_what_is_odd_and_nothing_else():
    plain = str(TokenCounts(2, 5, 3, 2, {2: 1, 3: 1}))
    assert plain.splitlines() == [
        "rows            2",
        "tokens          5",
        "supervised      3 (60.0%)",
        "masked          2",
        "tokens per row  2 to 3, mean 2.5",
        "percentiles     5 %: 2, 25 %: 2, 50 %: 2, 75 %: 3, 95 %: 3, 99 %: 3",
    ]
    odd = str(TokenCounts(4, 5, 2, 2, {0: 1, 2: 1, 3: 1}, null_rows=1, null_labels=1, misaligned_rows=1))
    assert "empty rows      1\nnull rows       1\nnull labels     1\nmisaligned      1 rows have more" in odd


def test_html_is_a_table_with_row_headers():
    page = TokenCounts(2, 5, 3, 2, {2: 1, 3: 1})._repr_html_()
    assert page.count("<tr>") == page.count('scope="row"') == 6


def test_json_round_trips_and_holds_the_named_figures():
    content = json.loads(json.dumps(counts_of([1, 2, 2]).to_json()))
    assert (content["rows"], content["tokens"], content["supervised_tokens"]) == (3, 5, None)
    assert content["histogram"] == [{"from": 1, "to": 1, "rows": 1}, {"from": 2, "to": 2, "rows": 2}]


def test_empty_counts_print():
    nothing = TokenCounts(0, 0, 0, 0, {})
    assert "tokens per row  0 to 0, mean 0.0" in str(nothing)
    assert nothing.histogram_text() == ""
    assert nothing.percentiles[50] == 0
