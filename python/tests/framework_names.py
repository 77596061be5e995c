"""Finds every name of DeepSpeed in the sources of a package, by its syntax trees: python framework_names.py FOLDER... prints
them with one place each. data/framework_names.tsv has those of the frameworks that docs/python.md names."""

import ast
import collections
import pathlib
import sys


def names_in(folder):
    """{name: places}; a place is file:line in the folder."""
    found = collections.defaultdict(list)
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "deepspeed" in text:
            _Finder(found, str(path.relative_to(folder))).examine(ast.parse(text))
    return found


class _Finder:
    def __init__(self, found, path):
        self._found, self._path = found, path
        self._means = {"deepspeed": "deepspeed"}  # local names of modules and of what is imported from them

    def examine(self, tree):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._note_import(node)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and _is_deepspeed(node.module):
                for alias in node.names:
                    self._note(f"{node.module}.{alias.name}", node)
                    self._means[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for node in ast.walk(tree):
            first, _, rest = (_dotted(node) or "").partition(".")
            if rest and first in self._means:
                self._note(f"{self._means[first]}.{rest}", node)

    def _note_import(self, node):
        for alias in node.names:
            if _is_deepspeed(alias.name):
                self._note(alias.name, node)
                if alias.asname:
                    self._means[alias.asname] = alias.name

    def _note(self, name, node):
        self._found[name].append(f"{self._path}:{node.lineno}")


def _is_deepspeed(module):
    return module is not None and module.split(".")[0] == "deepspeed"


def _dotted(node):
    """"a.b.c" of an attribute, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before and f"{before}.{node.attr}"
    return None


if __name__ == "__main__":
    for each in sys.argv[1:]:
        for name, places in sorted(names_in(each).items()):
            print(name, f"{pathlib.Path(each).name}/{places[0]}", sep="\t")
