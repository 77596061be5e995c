"""Which of DeepSpeed's unit tests say something about another engine with its interface.

`select()` sorts collected cases by patterns.tsv. What a pattern is compared with is the code that a case runs: its
function, what its class has besides other tests, the fixtures that it names, and, from there on, every function,
class and constant of tests/unit that these name. Comments, docstrings and imports that the case does not use do not
count.
"""

import ast
import pathlib
import re
from typing import NamedTuple

PATTERNS = pathlib.Path(__file__).with_name("patterns.tsv")
ENGINE_NAMES = re.compile(r"\bdeepspeed(?:\.\w+)+")


class Pattern(NamedTuple):
    kind: str
    name: str
    expression: re.Pattern


class Source(NamedTuple):
    code: str  # without comments and docstrings
    imports: list  # dotted names of the package deepspeed


def read_rows(path):
    """The rows of a table without a header, whose lines with # are comments."""
    return [line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#")]


def read_patterns(path=PATTERNS):
    return [Pattern(kind, name, re.compile(expression)) for kind, name, expression in read_rows(path)]


class Module:
    """One file of the tests: its top-level definitions, and where its imported names come from."""

    def __init__(self, path, root):
        self.path = path
        self.root = root
        tree = ast.parse(path.read_text())
        drop_docstrings(tree)
        self.definitions = {}  # name: nodes
        self.imported = {}  # name: (module, attribute or None)
        self.stars = []
        for node in tree.body:
            self._read(node)

    def _read(self, node):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.definitions.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, source in imported_names(node, self._package()):
                if name == "*":
                    self.stars.append(source[0])
                else:
                    self.imported[name] = source
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for child in ast.iter_child_nodes(node):
                for inner in getattr(child, "body", [child]) if isinstance(child, ast.ExceptHandler) else [child]:
                    if isinstance(inner, ast.stmt):
                        self._read(inner)
        else:
            for target in ast.walk(node):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    self.definitions.setdefault(target.id, []).append(node)

    def _package(self):
        return list(self.path.relative_to(self.root).parent.parts)


def imported_names(node, package):
    """Yields (name in the file, (module, attribute or None)) for an import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0], (alias.name if alias.asname else alias.name.split(".")[0], None)
        return
    module = node.module or ""
    if node.level:
        module = ".".join(package[:len(package) - node.level + 1] + ([module] if module else []))
    for alias in node.names:
        yield alias.asname or alias.name, (module, alias.name)


def drop_docstrings(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and body
                and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
                and isinstance(body[0].value.value, str)):
            node.body = body[1:] or [ast.Pass()]


class Reader:
    """Collects the code behind cases; files are read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.modules = {}

    def source(self, case):
        """The code of a case: {"file", "class", "function", "fixtures"} as collecting.py has written them."""
        module = self._module(self.root / case["file"])
        seen, code, imports = set(), [], []
        if case["class"]:
            for node in self._find(module, case["class"])[1]:
                self._walk(module, without_other_tests(node, case["function"]), seen, code, imports)
            seen.add((module.path, case["class"]))
        names = [case["function"], *case["fixtures"]]
        self._follow(module, names, seen, code, imports)
        return Source("\n".join(code), imports)

    def _module(self, path):
        if path not in self.modules:
            self.modules[path] = Module(path, self.root)
        return self.modules[path]

    def _file_of(self, dotted):
        path = self.root / dotted.replace(".", "/")
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def _find(self, module, name):
        """Returns the module that defines a name, and the nodes; or the module of deepspeed that it is from."""
        if name in module.definitions:
            return module, module.definitions[name]
        if name in module.imported:
            source, attribute = module.imported[name]
            path = self._file_of(source)
            if path is not None and attribute is not None:
                return self._find(self._module(path), attribute)
            return f"{source}.{attribute}" if attribute else source, []
        for star in module.stars:
            path = self._file_of(star)
            if path is not None:
                found = self._find(self._module(path), name)
                if found is not None:
                    return found
        return None

    def _follow(self, module, names, seen, code, imports):
        for name in names:
            found = self._find(module, name)
            if found is None:
                continue
            where, nodes = found
            if isinstance(where, str):
                if where.split(".")[0] == "deepspeed" and where not in imports:
                    imports.append(where)
            elif (where.path, name) not in seen:
                seen.add((where.path, name))
                for node in nodes:
                    self._walk(where, node, seen, code, imports)

    def _walk(self, module, node, seen, code, imports):
        text = ast.unparse(node)
        code.append(text)
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                for _, (source, attribute) in imported_names(inner, module._package()):
                    path = self._file_of(source)
                    if path is not None and attribute not in (None, "*"):
                        self._follow(self._module(path), [attribute], seen, code, imports)
                    elif source.split(".")[0] == "deepspeed":
                        imports.append(f"{source}.{attribute}" if attribute else source)
        imports += [name for name in ENGINE_NAMES.findall(text) if name not in imports]
        self._follow(module, sorted(names), seen, code, imports)


def without_other_tests(node, function):
    """A class with its bases and everything but its other tests."""
    kept = [child for child in node.body
            if not (isinstance(child, ast.FunctionDef) and child.name.startswith("test") and child.name != function)]
    return ast.ClassDef(name=node.name, bases=node.bases, keywords=node.keywords, body=kept or [ast.Pass()],
                        decorator_list=node.decorator_list)


def select(cases, root, patterns):
    """Yields (case, the pattern that leaves it out, or None)."""
    reader = Reader(root)
    for case in cases:
        source = reader.source(case)
        searched = {"import": source.imports, "code": [source.code], "feature": [case["id"], source.code, *source.imports],
                    "parameter": [case["id"]]}
        yield case, next((pattern for pattern in patterns
                          if any(pattern.expression.search(text) for text in searched[pattern.kind])), None)
