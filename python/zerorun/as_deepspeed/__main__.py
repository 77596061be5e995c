"""python -m zerorun.as_deepspeed [-m | --no_python] PROGRAM [ARGUMENTS...]

Runs a program in which `import deepspeed` finds zerorun: a script (its name ends in .py) in this process, the module PROGRAM with
-m, else a command (torchrun, accelerate). --local_rank gives the script --local_rank=N, as DeepSpeed's launcher does.

python -m zerorun.as_deepspeed --print-env
    prints the two variables for a shell: eval "$(python -m zerorun.as_deepspeed --print-env)"
"""

import importlib.machinery
import os
import runpy
import shlex
import sys

from .. import UserError
from . import FOLDER, variables

_OPTIONS = {"-m": "module", "--module": "module", "--no_python": "no_python", "--local_rank": "local_rank",
            "--print-env": "print_env", "--print_env": "print_env", "-h": "help", "--help": "help"}


def main(arguments):
    options = set()
    while arguments and arguments[0] in _OPTIONS:
        options.add(_OPTIONS[arguments.pop(0)])
    if "help" in options or not arguments and "print_env" not in options:
        print(__doc__.strip())
        return 0 if "help" in options else 2
    if arguments and arguments[0].startswith("-"):
        raise UserError(f"{arguments[0]}: unknown option before the program's name: the program's own go after it")
    found = variables()
    if "print_env" in options:
        for name, value in found.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    os.environ.update(found)  # for processes that the program starts
    program, rest = arguments[0], arguments[1:]
    is_script = program.endswith(".py")
    if "no_python" in options or "module" not in options and not is_script:
        return _execute(arguments)
    if "module" not in options and not os.path.isfile(program):
        raise UserError(f"cannot run {program!r}: no such file: correct the path of the script")
    if "local_rank" in options:
        rest.insert(0, f"--local_rank={os.environ.get('LOCAL_RANK', '0')}")
    sys.argv[:] = [program, *rest]
    has_own_folder = not getattr(sys.flags, "safe_path", False)  # sys.path[0]
    if has_own_folder and "module" not in options:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    sys.path.insert(1 if has_own_folder else 0, str(FOLDER))
    _check_path()
    if "module" in options:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
    return 0


def _execute(command):
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"cannot run {command[0]!r}: {error.strerror}") from error


def _check_path():
    """Raises UserError if a folder before ours has a package deepspeed."""
    found = importlib.machinery.PathFinder.find_spec("deepspeed")
    if found is not None and not (found.origin or "").startswith(str(FOLDER)):
        place = found.origin or list(found.submodule_search_locations)[0]
        raise UserError(f"the program would import another deepspeed, {place}, which is beside it or in the folder where it "
                        "runs: run it from another folder")


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"zerorun: {error}")
    sys.exit(code)
