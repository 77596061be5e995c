"""Memory, open files and threads do not grow, for any order in which objects are destroyed."""

import pytest
from launch import ALL, run


@pytest.mark.parametrize("ranks", [1, 2] if ALL else [2])
def test_engines_and_steps_leave_nothing(ranks, tmp_path):
    """In one process: 100 engines, engines of one model, and a thousand steps."""
    print(run("lifetimes.py", tmp_path, "engines", "again", "steps", ranks=ranks, timeout=300))
