"""Memory, open files and threads do not grow, for any order in which objects are destroyed."""

import pytest
from launch import run


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hundred_engines_leave_nothing(ranks):
    print(run("lifetimes.py", "engines", ranks=ranks, timeout=300))


def test_engines_of_one_model_leave_nothing():
    print(run("lifetimes.py", "again", ranks=2))


def test_a_thousand_steps_take_no_more_memory(tmp_path):
    print(run("lifetimes.py", "steps", tmp_path, ranks=2, timeout=300))
