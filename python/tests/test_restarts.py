"""Programs that are started again after a rank was killed go on with the same bits: from generations in memory and from checkpoints."""

import ast
import re

import pytest
from launch import ALL, run

EPOCHS = 3


def steps_of(path):
    """The lines of each step that counted: a later attempt's take the place of an earlier one's."""
    steps, attempts = {}, {}
    for line in path.read_text().splitlines():
        attempt, step, rest = line.split(" ", 2)
        if attempts.setdefault(step, attempt) != attempt:
            attempts[step], steps[step] = attempt, []
        steps.setdefault(step, []).append(rest)
    return steps


def train(folder, *arguments, ranks=2, **more):
    folder.mkdir()
    output = run("restarted.py", folder, EPOCHS, *arguments, ranks=ranks, **more)
    return output, [steps_of(folder / f"rank{rank}") for rank in range(ranks)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    made = {}

    def of(optimizer):
        if optimizer not in made:
            folder = tmp_path_factory.mktemp("restarts") / "calm"
            made[optimizer] = train(folder, 0, 0, *([optimizer] if optimizer else []))[1]
        return made[optimizer]

    return of


@pytest.mark.parametrize("optimizer", [None, "NAdam"] if ALL else [None])
@pytest.mark.parametrize("fatal_step", range(2, 8) if ALL else (4,))
def test_from_memory(tmp_path, undisturbed, fatal_step, optimizer):
    output, steps = train(tmp_path / "run", fatal_step, 0, *([optimizer] if optimizer else []),
                          options=["--max_restarts", "1", "--hold_every", "1"])
    begun = fatal_step if fatal_step % 2 else fatal_step - 1
    assert output.count(f"from memory/global_step{begun}\n") == 2, output
    assert steps == undisturbed(optimizer)


@pytest.mark.skipif(not ALL, reason="the next one is from a checkpoint too")
def test_from_a_checkpoint(tmp_path, undisturbed):
    output, steps = train(tmp_path / "run", 5, 3, options=["--max_restarts", "1"])
    assert output.count("saves/global_step3\n") == 2 and steps == undisturbed(None)


def test_a_client_state_that_no_function_returns(tmp_path):
    """Such a program holds nothing once it has saved one."""
    output = run("held_without_state.py", tmp_path, options=["--max_restarts", "1", "--hold_every", "1"])
    assert "the program saves a client_state: give load_newest() a function" in output
    assert len(re.findall(r"from \S*saves/global_step2\n", output)) == 2, output


def numbers_of(steps):
    """The samples of an epoch, of all ranks."""
    used = {}
    for step, lines in steps.items():
        for line in lines if step != "weights" else ():
            epoch, rest = line.split(" ", 1)
            used.setdefault(int(epoch), []).extend(ast.literal_eval(rest[:rest.index("]") + 1]))
    return used


def test_another_number_of_ranks_uses_the_other_samples(tmp_path):
    """22 samples: two ranks use 8 in a step, so that step 2 ends in the middle of an epoch; then one rank uses the rest."""
    folder = tmp_path / "run"
    folder.mkdir()
    run("restarted.py", folder, EPOCHS, 3, 2, expect=None)  # killed behind step 3
    first = [steps_of(folder / f"rank{rank}") for rank in range(2)]
    (folder / "rank0").unlink()
    run("restarted.py", folder, 1, ranks=1)
    used = [number for rank in first for step in ("1", "2") for number in numbers_of({step: rank[step]})[0]]
    rest = numbers_of(steps_of(folder / "rank0"))[0]
    assert len(used) == 16 and sorted(used + rest) == list(range(22))
