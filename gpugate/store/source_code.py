"""The statements that functions are made of, wherever in their package they stand.

From the functions on, every name leads to the top-level statement that binds it, through imports of the same top-level
package, and so on. A statement that no name leads to is left out, such as `WORKLOADS` with its promises. So a statement
that moves to another module, a renamed module, a comment, a docstring or another order changes nothing.

Not followed: names that are looked up as texts (`getattr`, `globals`), and other packages, of which only the imported
name counts. Only text and `ast` are used, so every version of Python finds the same statements.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# Decorators that only wrap what they decorate. Another one may register it where no name leads.
_PLAIN_DECORATORS = {
    *("cache", "cached_property", "classmethod", "contextmanager", "dataclass", "inference_mode", "jit", "lru_cache"),
    *("no_grad", "override", "property", "staticmethod", "wraps"),
}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ANNOTATIONS = ("annotation", "returns")


@dataclass
class Code:
    """`statements`: their texts, without comments, docstrings, imports and blank lines. `imported`: a line for each
    name of another package that they use, such as `np = numpy`."""

    statements: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Use:
    """A dotted name in a statement, as in `torch.nn.functional`; `annotates`: it is part of a type annotation only."""

    parts: tuple[str, ...]
    annotates: bool


@dataclass(frozen=True)
class _Statement:
    text: str
    binds: frozenset[str]
    uses: frozenset[_Use]
    imports: tuple[tuple[str, str], ...]  # its own imports, see `_imports`
    always: bool  # it does something when its module is imported


@dataclass(frozen=True)
class _Module:
    statements: tuple[_Statement, ...]
    imports: dict[str, str]
    stars: tuple[str, ...]  # modules of which it imports all names

    always: tuple[int, ...]  # the statements that do something when it is imported
    binding: dict[str, list[int]]  # the statements that bind a name


def collect_code(
    functions: Iterable[tuple[str, str, Path]], find_root: Callable[[str], Path | None] = lambda package: None
) -> Code:
    """Collects the statements that define `functions`: for each a module, a top-level name in it, and its file.

    A name that the module does not bind, such as a lambda's, stands for the whole module. `find_root` returns the
    parent folder of a further top-level package to follow, and None for a package of which only the names count.
    """
    walk = _Walk(find_root)
    for module, name, path in functions:
        walk.start(module, name, path)
    return walk.code


class _Walk:
    """A walk from statement to statement along names; `code` has each reached statement once."""

    def __init__(self, find_root: Callable[[str], Path | None]) -> None:
        self.code = Code()
        self._find_root = find_root
        self._roots: dict[str, Path | None] = {}  # the parent folder of each top-level package; None: not followed
        self._modules: dict[str, _Module | None] = {}
        self._seen: set[tuple[str, int]] = set()

    def start(self, module: str, name: str, path: Path) -> None:
        package = path.parent if path.name == "__init__.py" else path
        if self._roots.get(module.split(".")[0]) is None:
            self._roots[module.split(".")[0]] = package.parents[module.count(".")]
        if not self._reach(module, (name,)):
            self._reach_all(module)

    def _root(self, module: str) -> Path | None:
        package = module.split(".")[0]
        if package not in self._roots:
            self._roots[package] = self._find_root(package)
        return self._roots[package]

    def _file(self, module: str) -> Path | None:
        """Finds the file of a module of these packages; None for a module of another package."""
        root = self._root(module)
        if root is None:
            return None
        path = root.joinpath(*module.split("."))
        files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        return next((one for one in files if one.is_file()), None)

    def _load(self, module: str) -> _Module | None:
        if module not in self._modules:
            path = self._file(module)
            package = module if path is not None and path.name == "__init__.py" else module.rpartition(".")[0]
            self._modules[module] = None if path is None else _parse(path.read_text(encoding="utf-8"), package)
        return self._modules[module]

    def _is_module(self, name: str) -> bool:
        root = self._root(name)
        return self._file(name) is not None or (root is not None and root.joinpath(*name.split(".")).is_dir())

    def _reach_all(self, module: str) -> None:
        parsed = self._load(module)
        for index in range(len(parsed.statements)) if parsed else ():
            self._take(module, index)

    def _reach(self, module: str, parts: tuple[str, ...], annotates: bool = False) -> bool:
        """Takes the statements behind `module.parts[0].parts[1]...`; returns False where nothing binds the name."""
        parsed = self._load(module)
        bound = parsed.binding.get(parts[0], []) if parsed else []
        for index in bound:
            self._take(module, index)
        if parsed is not None and parts[0] in parsed.imports:
            self._follow(parts[0], parsed.imports[parts[0]], parts[1:], annotates)
        elif not bound:
            return self._reach_elsewhere(module, parts)
        return True

    def _reach_elsewhere(self, module: str, parts: tuple[str, ...]) -> bool:
        """Takes a module below a package, or a name of `from module import *`."""
        parsed = self._load(module)
        below = f"{module}.{parts[0]}"
        if self._is_module(below):
            self._reach_in(below, parts[1:])
            return True
        return any(self._reach(star, parts) for star in (parsed.stars if parsed else ()) if self._is_module(star))

    def _reach_in(self, module: str, parts: tuple[str, ...]) -> None:
        """Takes the statements behind a name of a module, or without a name the whole module."""
        if not parts or not self._reach(module, parts):
            self._reach_all(module)

    def _follow(self, name: str, target: str, parts: tuple[str, ...], annotates: bool) -> None:
        """Follows an import of `name`: `target` is a module, or a module and a name in it."""
        if self._root(target) is None:
            if not annotates:
                self.code.imported.add(f"{name} = {target}")
            return
        base, _, last = target.rpartition(".")
        if base and self._reach(base, (last, *parts)):
            return
        if self._is_module(target):
            self._reach_in(target, parts)

    def _take(self, module: str, index: int) -> None:
        parsed = self._load(module)
        if parsed is None or (module, index) in self._seen:
            return
        self._seen.add((module, index))
        for other in parsed.always:
            self._take(module, other)
        statement = parsed.statements[index]
        if statement.text:
            self.code.statements.add(statement.text)
        own = dict(statement.imports)
        for use in statement.uses:
            name = use.parts[0]
            if name in own:
                self._follow(name, own[name], use.parts[1:], use.annotates)
            else:
                self._reach(module, use.parts, use.annotates)


@cache
def _parse(text: str, package: str) -> _Module:
    tree = ast.parse(text)
    lines = _lines_without_comments(text)
    imports: dict[str, str] = {}
    stars: list[str] = []
    statements: list[_Statement] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = _imports(node, package)
            imports.update((name, target) for name, target in found if name != "*")
            stars += [target for name, target in found if name == "*"]
        elif not (_is_text(node) or _is_guard(node)):
            statements.append(_statement(node, lines, package))
            if not isinstance(node, _DEFINITIONS):  # `try: import a`
                imports.update(statements[-1].imports)
    always = tuple(index for index, one in enumerate(statements) if one.always)
    binding: dict[str, list[int]] = {}
    for index, one in enumerate(statements):
        for name in one.binds:
            binding.setdefault(name, []).append(index)
    return _Module(tuple(statements), imports, tuple(stars), always, binding)


def _lines_without_comments(text: str) -> list[str]:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [line.rstrip() for line in lines]


def _imports(node: ast.AST, package: str) -> list[tuple[str, str]]:
    """Lists the names that an import statement binds, with their targets; `*` stands for a whole module."""
    if isinstance(node, ast.Import):
        return [
            (one.asname or one.name.split(".")[0], one.name if one.asname else one.name.split(".")[0])
            for one in node.names
        ]
    if not isinstance(node, ast.ImportFrom) or node.module == "__future__":
        return []
    around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*around, *([node.module] if node.module else [])])
    return [(one.asname or one.name, base if one.name == "*" else f"{base}.{one.name}") for one in node.names]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_guard(node: ast.AST) -> bool:
    """True for `if TYPE_CHECKING:`, whose imports no step runs, and `if __name__ == ...`, which no measurement runs."""
    names = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)} if isinstance(node, ast.If) else set()
    return bool(names & {"TYPE_CHECKING", "__name__"})


def _statement(node: ast.stmt, lines: list[str], package: str) -> _Statement:
    binds, imports = set[str](), list[tuple[str, str]]()
    for one in _in_its_scope(node):
        if isinstance(one, _DEFINITIONS):
            binds.add(one.name)
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            binds.add(one.id)
    for inner in ast.walk(node):
        imports += _imports(inner, package)
    special = any(name.startswith("__") for name in binds) and isinstance(node, _DEFINITIONS)
    always = not binds or special or not _decorators(node) <= _PLAIN_DECORATORS
    return _Statement(_text(node, lines), frozenset(binds), frozenset(_uses(node)), tuple(imports), always)


def _in_its_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the node and its descendants, without the insides of functions and classes."""
    yield node
    if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from _in_its_scope(child)


def _decorators(node: ast.stmt) -> set[str]:
    """Returns the last part of the name of each decorator."""
    names = set()
    for one in node.decorator_list if isinstance(node, _DEFINITIONS) else ():
        called = one.func if isinstance(one, ast.Call) else one
        names.add(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return names


def _uses(node: ast.AST, annotates: bool = False) -> Iterator[_Use]:
    parts = _dotted_name(node)
    if parts:
        yield _Use(parts, annotates)
        return
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _uses(child, annotates or name in _ANNOTATIONS)


def _dotted_name(node: ast.AST) -> tuple[str, ...]:
    """Splits `torch.nn` into `("torch", "nn")`; empty for anything else than a name and its attributes."""
    if isinstance(node, ast.Name):
        return (node.id,)
    before = _dotted_name(node.value) if isinstance(node, ast.Attribute) else ()
    return (*before, node.attr) if before and isinstance(node, ast.Attribute) else ()


def _text(node: ast.stmt, lines: list[str]) -> str:
    left_out = set[int]()
    for one in ast.walk(node):
        if isinstance(one, _DEFINITIONS) and _is_text(one.body[0]):
            left_out.update(_rows(one.body[0]))
        if isinstance(one, ast.Import | ast.ImportFrom):
            left_out.update(_rows(one))
        if isinstance(one, ast.If) and _is_guard(one):
            left_out.update(_rows(one))
    rows = (row for row in _rows(node) if row not in left_out and lines[row - 1])
    return "\n".join(lines[row - 1] for row in rows)


def _rows(node: ast.stmt) -> range:
    """Returns the line numbers of a statement, from 1, its decorators included."""
    decorators = node.decorator_list if isinstance(node, _DEFINITIONS) else []
    return range(min([node.lineno, *(one.lineno for one in decorators)]), (node.end_lineno or node.lineno) + 1)
