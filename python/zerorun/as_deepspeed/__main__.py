"""python -m zerorun.as_deepspeed [-m | --no_python] PROGRAM [ARGUMENTS...]

Runs a program in which `import deepspeed` finds zerorun, in place of this process: a script (its name ends in .py), the module
PROGRAM with -m, else a command (torchrun, accelerate). --local_rank gives the script --local_rank=N, as DeepSpeed's launcher does.

python -m zerorun.as_deepspeed --print-env
    prints the two variables for a shell: eval "$(python -m zerorun.as_deepspeed --print-env)"
"""

import importlib.machinery
import os
import shlex
import subprocess
import sys

from .. import UserError
from . import variables

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
    os.environ.update(found)
    program, rest = arguments[0], arguments[1:]
    is_module, is_script = "module" in options, "no_python" not in options and program.endswith(".py")
    if not is_module and not is_script:
        _check_command(arguments)
        return _execute(arguments)
    if not is_module and not os.path.isfile(program):
        raise UserError(f"cannot run {program!r}: no such file: correct the path of the script")
    if not getattr(sys.flags, "safe_path", False):
        _check_folder(os.getcwd() if is_module else os.path.dirname(os.path.realpath(program)))
    if "local_rank" in options:
        rest.insert(0, f"--local_rank={os.environ.get('LOCAL_RANK', '0')}")
    # A process of its own kind: this one has imported torch already, before the program could set variables for it.
    flags = [*subprocess._args_from_interpreter_flags(), *(["-u"] if sys.stdout.write_through else [])]
    return _execute([sys.executable, *flags, *(["-m"] if is_module else []), program, *rest])


def _execute(command):
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise UserError(f"cannot run {command[0]!r}: {error.strerror}") from error


def _check_command(command):
    """Checks the folder of the script that a command (torchrun, accelerate launch, python) runs: the first argument that is one,
    or where it runs if it runs a module."""
    script = next((argument for argument in command[1:] if argument.endswith(".py") and os.path.isfile(argument)), None)
    options = command[1:command.index(script)] if script is not None else command[1:]
    if os.environ.get("PYTHONSAFEPATH") or {"-P", "-I"} & set(options):
        return
    if script is not None:
        _check_folder(os.path.dirname(os.path.realpath(script)))
    elif {"-m", "--module"} & set(options):
        _check_folder(os.getcwd())


def _check_folder(folder):
    """Raises UserError if this folder, which Python searches before ours, has a package deepspeed."""
    found = importlib.machinery.PathFinder.find_spec("deepspeed", [folder])
    if found is not None:
        place = found.origin or list(found.submodule_search_locations)[0]
        raise UserError(f"the program would import another deepspeed, {place}, which is beside it or in the folder where it "
                        "runs: run it from another folder")


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"zerorun: {error}")
    sys.exit(code)
