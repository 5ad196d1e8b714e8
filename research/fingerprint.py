"""Fingerprints of the code that determines a run.

A record carries the fingerprint of the code that made it, so that a page can
say which of its rows are older than the code. A fingerprint should change if
the code may give other results, and only then. It covers

- the definitions that a run can reach. They are found from some functions and
  classes: every name in them is followed, through imports, to its definition
  at the top of a module of this repository, and so on. A class is one
  definition, with all its methods. The rest of a module, for example what
  prints and draws, does not count. Statements that define nothing, such as
  `register(...)`, count if any definition of their module does.
- the syntax of these definitions, without docstrings, the arguments of errors
  and warnings, and annotations of arguments. Comments, line breaks and the
  order of definitions do not count either, nor do their modules. Nor do
  titles, grids and numbers of seeds, because each record has its configuration
  and its seed.

What is found by a string at run time, such as a backend by its name, cannot be
followed and must be passed. Installed packages are not covered. The versions
of the most important ones are in `meta.json`.

The source is read, not imported, so the fingerprint of another checkout can be
computed, too.
"""

import ast
import functools
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("keras_qpsbgd", "research")
DIGITS = 16


def fingerprint(names, root=ROOT, without=()):
    """Returns the fingerprint of definitions and all that they depend on.

    Args:
        names: List of strings. Definitions, such as
            `"research.engine.training.Trainer"`, or modules.
        root: Folder of a checkout. Defaults to this one.
        without: List of strings. Definitions, modules or packages that the run
            does not use, which are not followed.

    Returns:
        A string of 16 hexadecimal digits.

    Raises:
        ValueError: If one of `names` is not found.
    """
    found = closure(names, root, without)
    # Without the names of modules, so that moves do not count.
    parts = [f"{name.rpartition('.')[2]}\n{found[name]}" for name in found]
    text = "\n".join(sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def stamp(store, code):
    """Makes a store add `"code"` to all records that it gets from now on.

    Args:
        store: A `records.Store`.
        code: String. The fingerprint, or a dictionary that maps methods to
            theirs. Compute it at the start: the files may be edited meanwhile.

    Returns:
        The store.
    """
    add = store.add

    def add_stamped(record, seconds=None):
        found = code if isinstance(code, str) else code[record["method"]]
        add({**record, "code": found}, seconds)

    store.add = add_stamped
    return store


def closure(names, root=ROOT, without=()):
    """Returns definitions and all that they depend on.

    Args:
        names, root, without: See `fingerprint`.

    Returns:
        A dictionary that maps the names of definitions to their syntax as text.
    """
    source = _Source(root)
    found = {}
    missing = []
    for name in names:
        places = source.places(name)
        if not places:
            raise ValueError(
                f"`names` must be definitions in {root}. Received: {name}"
            )
        missing += places
    skipped = tuple(f"{name}." for name in without)
    while missing:
        of, definition = missing.pop()
        name = f"{of}.{definition}"
        if name in found:
            continue
        module = source.module(of)
        found[name], used = module.content(definition)
        places = {place for one in used for place in source.places(one)}
        places.add((of, _LOOSE))
        missing += [
            place
            for place in places
            if not f"{'.'.join(place)}.".startswith(skipped)
        ]
    return found


_LOOSE = "*"  # the statements of a module that define nothing


class _Source:
    """The modules of a checkout."""

    def __init__(self, root):
        self._root = pathlib.Path(root)
        self._modules = {}

    def module(self, name):
        """Returns a `_Module`, or `None` if there is none of this name."""
        if name not in self._modules:
            parts = name.split(".")
            path = self._root.joinpath(*parts)
            found = [path.with_suffix(".py"), path / "__init__.py"]
            found = [path for path in found if path.is_file()]
            self._modules[name] = None
            if found and parts[0] in PACKAGES:
                text = found[0].read_text(encoding="utf-8")
                self._modules[name] = _module(name, text)
        return self._modules[name]

    def places(self, name):
        """Returns pairs of a module and a name in it.

        A name that leads to a whole module gives all its definitions. One that
        leads out of the repository gives none.
        """
        parts = name.split(".")
        end = len(parts)
        while end and self.module(".".join(parts[:end])) is None:
            end -= 1
        if not end:
            return []
        of, rest = ".".join(parts[:end]), parts[end:]
        module = self.module(of)
        if rest and rest[0] in module.imports:
            return self.places(".".join([module.imports[rest[0]], *rest[1:]]))
        if rest and rest[0] in module.definitions:
            return [(of, rest[0])]
        return [] if rest else [(of, name) for name in module.definitions]


@functools.lru_cache(maxsize=1_000)
def _module(name, text):
    return _Module(name, text)


class _Module:
    """The definitions at the top of a module, and its imports.

    Attributes:
        definitions: Dictionary. Maps names to lists of syntax trees.
        imports: Dictionary. Maps names to the full names that they stand for.
    """

    def __init__(self, name, text):
        tree = _Stripped().visit(ast.parse(text))
        self._name = name
        self._contents = {}
        self.imports = {}
        self.definitions = {_LOOSE: []}
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports |= _imported(node)
                continue
            if isinstance(node, (ast.If, ast.Try)):
                for one in ast.walk(node):
                    self.imports |= _imported(one)
            for name in _bound_names(node) or {_LOOSE}:
                self.definitions.setdefault(name, []).append(node)

    def content(self, definition):
        """Returns the text of a definition and the full names that it uses."""
        if definition not in self._contents:
            nodes = self.definitions[definition]
            text = _text(nodes)
            self._contents[definition] = text, self._used_names(nodes)
        return self._contents[definition]

    def _used_names(self, nodes):
        chains = _Chains(self.imports)
        for node in nodes:
            chains.visit(node)
        found = set()
        for first, *rest in chains.found:
            if first in chains.imports:
                found.add(".".join([chains.imports[first], *rest]))
            elif first in self.definitions:
                found.add(f"{self._name}.{first}")
        return found


def _imported(node):
    """Maps the names that an import defines to full names."""
    if isinstance(node, ast.ImportFrom):
        return {
            one.asname or one.name: f"{node.module}.{one.name}"
            for one in node.names
        }
    if not isinstance(node, ast.Import):
        return {}
    first = {one.name.partition(".")[0] for one in node.names if not one.asname}
    named = {one.asname: one.name for one in node.names if one.asname}
    return {**dict(zip(first, first)), **named}


def _bound_names(node):
    """Returns the names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    found = set()
    for part in ast.iter_child_nodes(node):
        # The variables of a comprehension or a `lambda` are its own.
        if not isinstance(part, (ast.comprehension, ast.Lambda)):
            found |= _bound_names(part)
    return found


def _text(tree):
    """Returns a syntax tree as text, the same for all versions of Python."""
    if isinstance(tree, list):
        kept = [n for n in tree if not isinstance(n, _IMPORTS)]
        return f"[{', '.join(map(_text, kept))}]"
    if not isinstance(tree, ast.AST):
        return repr(tree)
    fields = [(name, getattr(tree, name, None)) for name in tree._fields]
    parts = [
        f"{name}={_text(value)}"
        for name, value in fields
        if value not in (None, []) and name not in _UNUSED
    ]
    return f"{type(tree).__name__}({', '.join(parts)})"


_IMPORTS = (ast.Import, ast.ImportFrom)
_UNUSED = ("ctx", "kind", "type_comment")  # fields of syntax trees
_GRIDS = ("grid", "grids", "spread")  # functions
_PLAN = ("title", "grids", "literature", "tuning_seeds", "fresh_seeds")
_PLAN += ("first_seed", "host_seeds")  # arguments


class _Stripped(ast.NodeTransformer):
    """Removes what does not change results."""

    def generic_visit(self, node):
        super().generic_visit(node)
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty strings
            node.values = [
                part for part in node.values if getattr(part, "value", 0) != ""
            ]
        return node

    def visit_Expr(self, node):
        """Removes docstrings and warnings."""
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return None
        if isinstance(value, ast.Call):
            if ast.unparse(value.func) in ("print", "warnings.warn"):
                return None
        return self.generic_visit(node)

    def visit_If(self, node):
        """Removes what runs only as a command."""
        if ast.unparse(node.test) == "__name__ == '__main__'":
            return None
        return self.generic_visit(node)

    def visit_Call(self, node):
        """Removes what does not matter to a run of a given configuration."""
        if ast.unparse(node.func).split(".")[-1] in _GRIDS:
            return ast.Constant("grid")
        node.keywords = [one for one in node.keywords if one.arg not in _PLAN]
        return self.generic_visit(node)

    def visit_Raise(self, node):
        """Removes the arguments of errors."""
        if isinstance(node.exc, ast.Call):
            node.exc = node.exc.func
        return node


class _Chains(ast.NodeVisitor):
    """Collects names with their attributes, such as `["tf", "abs"]`.

    Args:
        imports: Dictionary of the imports of the module. Those inside of
            functions are added.
    """

    def __init__(self, imports):
        self.imports = dict(imports)
        self.found = []

    def visit_Import(self, node):
        self.imports |= _imported(node)

    visit_ImportFrom = visit_Import

    def visit_Name(self, node):
        self.found.append([node.id])

    def visit_Attribute(self, node):
        rest = []
        while isinstance(node, ast.Attribute):
            rest.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            self.found.append([node.id, *rest])
        else:
            self.visit(node)
