"""Vendi score and repeats of environment sources."""

from __future__ import annotations

import numpy as np
import pytest

from streams.diversity import nearest, repeat_share, similarity_kernel, vendi_score, vendi_share

SUM = (
    "class E:\n"
    "    def step(self, action):\n"
    "        total = self.a + self.b\n"
    "        return 'sum', float(action == str(total)), True\n"
)
PATH = (
    "import random\n"
    "\n"
    "def reset(seed):\n"
    "    grid = [[random.random() for _ in range(5)] for _ in range(7)]\n"
    "    while grid: grid.pop()\n"
)
WORDS = "WORDS = ['oak', 'elm']\nresult = {w[::-1]: len(w) for w in WORDS if not w.startswith('x')}\nprint(sorted(result))\n"


def test_vendi_of_orthogonal_sources_is_n_and_of_equal_ones_is_one() -> None:
    assert vendi_score(np.eye(5, dtype=np.float64)) == pytest.approx(5)
    assert vendi_score(np.ones((5, 5))) == pytest.approx(1)


def test_vendi_of_two_equal_pairs_is_two() -> None:
    assert vendi_score(np.asarray(np.kron(np.eye(2), np.ones((2, 2))), dtype=np.float64)) == pytest.approx(2)


def test_copies_and_renamed_copies_are_no_diversity() -> None:
    assert vendi_share([SUM] * 4) == pytest.approx(0.25, abs=1e-6)
    renamed = SUM.replace("total", "outcome").replace("class E", "class Sum").replace("sum", "other")
    assert vendi_share([SUM, renamed]) == pytest.approx(0.5, abs=1e-6)
    assert vendi_share([SUM, PATH, WORDS]) > 0.8


def test_no_source_and_empty_sources_are_counted_without_failing() -> None:
    assert vendi_share([]) == 0.0
    assert vendi_share(["", ""]) == pytest.approx(0.5)
    assert similarity_kernel(["", "ab"]).shape == (2, 2)


def test_nearest_is_the_design_with_the_largest_share_of_equal_positions_and_the_first_of_equals() -> None:
    assert nearest([1, 2, 3, 4], [[0, 0, 0, 4], [1, 2, 3, 9], [1, 2, 3, 8]]) == (0.75, 1)
    assert nearest([1, 2], []) == (0.0, -1)
    assert nearest([], [[1, 2]]) == (0.0, -1)


def test_nearest_agrees_with_the_gates_signatures() -> None:
    from infra.sourcetext import signature, similarity

    one, two = signature(SUM), signature(PATH)
    assert nearest(one, [two])[0] == pytest.approx(similarity(one, two))
    assert nearest(one, [two, signature(SUM)]) == (1.0, 1)


def test_repeats_are_counted_from_four_fifths() -> None:
    assert repeat_share([0.0, 0.79, 0.8, 1.0]) == 0.5
    assert repeat_share([]) == 0.0
