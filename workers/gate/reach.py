"""Static rules about what a source may name: imports, calls, special attributes. In: a tree. Out: Refused, or nothing.

The common aim: no way by text or by value to anything beyond the class and what the allowed modules compute. Modules are named
and never handed around, attributes are named and never looked up by a built text.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Final

from workers.gate.rules import GateRule, Refused
from workers.gate.tree import nodes

FORBIDDEN_NAMES: Final = frozenset(
    "eval exec compile open input breakpoint globals locals vars dir id hash memoryview exit quit help setattr delattr".split()  # noqa: SIM905
)
# names that tool environments like to give to their own variables
HARMLESS_AS_OWN: Final = frozenset("id hash dir input help".split())  # noqa: SIM905 - a list of words reads better
FRAME_ATTRIBUTES: Final = frozenset(
    "gi_frame gi_code cr_frame cr_code ag_frame ag_code f_back f_globals f_locals f_builtins f_code tb_frame tb_next "  # noqa: SIM905
    "func_globals func_code mro with_traceback add_note".split()
)
# these look attributes up by a text, or run a text
BY_TEXT: Final = frozenset(
    "SystemRandom get_type_hints ForwardRef make_dataclass Formatter get_field get_value vformat singledispatch "  # noqa: SIM905
    "singledispatchmethod".split()
)
GETTERS: Final = frozenset(("attrgetter", "methodcaller"))
SPECIAL_METHODS: Final = frozenset(
    f"__{name}__"
    for name in "init post_init repr str eq ne lt le gt ge len hash iter next getitem setitem contains call add sub mul mod "  # noqa: SIM905
    "bool int float index neg abs enter exit missing reversed".split()
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def check_imports(tree: ast.Module, allowed: frozenset[str]) -> None:
    """Allowed modules; nothing private and no other module out of them; no module as a value."""
    modules: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _check_module(alias.name, allowed, node.lineno)
                modules.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                raise Refused(GateRule.IMPORTS, f"line {node.lineno}: relative import")
            _check_module(node.module, allowed, node.lineno)
            for alias in node.names:
                if alias.name == "*" or alias.name.startswith("_") or _foreign(alias.name, allowed):
                    raise Refused(GateRule.IMPORTS, f"line {node.lineno}: import of {alias.name} from {node.module}")
                if _is_module(node.module, alias.name):
                    modules.add(alias.asname or alias.name)
    _check_modules_used(tree, frozenset(), frozenset(modules), allowed)


def check_calls(tree: ast.Module) -> None:
    """No name that reaches beyond the class, called or not; attributes by a plain constant name only."""
    own = {node.id for node in nodes(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes(tree) if isinstance(node, ast.arg)}
    plain = {id(call.func) for call in nodes(tree) if isinstance(call, ast.Call) and _names_plainly(call)}
    for node in nodes(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            raise Refused(GateRule.PRINTING, f"line {node.lineno}: print")
        reads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Name) and reads and (node.id in FORBIDDEN_NAMES - (HARMLESS_AS_OWN & own) or is_special(node.id)):
            raise Refused(GateRule.CALLS, f"line {node.lineno}: {node.id}")
        for name in _named(node):
            if name in BY_TEXT:
                raise Refused(GateRule.CALLS, f"line {_line(node)}: {name}")
            if name in GETTERS and not isinstance(node, ast.alias) and id(node) not in plain:
                raise Refused(GateRule.CALLS, f"line {_line(node)}: {name} by a name that is built or private")
        if isinstance(node, ast.Name) and node.id in ("getattr", "hasattr") and id(node) not in plain:
            raise Refused(GateRule.CALLS, f"line {node.lineno}: {node.id} by a name that is built or private")


def check_dunder(tree: ast.Module) -> None:
    """No special attributes but super().__init__, no odd special methods, no metaclass, no special names in texts."""
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and _hidden(node.attr):
            if node.attr == "__init__" and isinstance(node.value, ast.Call) and callee(node.value) == "super":
                continue
            raise Refused(GateRule.DUNDER, f"line {node.lineno}: .{node.attr}")
        if isinstance(node, ast.MatchClass) and any(map(_hidden, node.kwd_attrs)):
            raise Refused(GateRule.DUNDER, f"line {node.lineno}: a pattern over {', '.join(node.kwd_attrs)}")
        if isinstance(node, ast.FunctionDef) and is_special(node.name) and node.name not in SPECIAL_METHODS:
            raise Refused(GateRule.DUNDER, f"line {node.lineno}: def {node.name}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__" in node.value:
            raise Refused(GateRule.DUNDER, f"line {node.lineno}: a text with a double underscore")
        if isinstance(node, ast.ClassDef) and node.keywords:
            raise Refused(GateRule.DUNDER, f"line {node.lineno}: class keywords")


def callee(call: ast.Call) -> str:
    """The last name of what is called."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def is_special(name: str) -> bool:
    """Whether a name has double underscores around it."""
    return name.startswith("__") and name.endswith("__")


def _check_module(name: str, allowed: frozenset[str], line: int) -> None:
    parts = name.split(".")
    if parts[0] not in allowed or any(part.startswith("_") for part in parts if part != "__future__"):
        raise Refused(GateRule.IMPORTS, f"line {line}: import of {name}")


def _check_modules_used(node: ast.AST, local: frozenset[str], modules: frozenset[str], allowed: frozenset[str]) -> None:
    """Each use of a module's name stands before a dot, and what follows is public and no other module. `local`: names that the
    functions around it bind to something else."""
    if isinstance(node, ast.Attribute):
        path = _path(node)
        if path and path[0] in modules - local:
            _check_path(path, node.lineno, allowed)
            return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in modules - local:
        raise Refused(GateRule.IMPORTS, f"line {node.lineno}: the module {node.id} as a value")
    if isinstance(node, _SCOPES):
        inner = local | _bound_in(node)
        for child in ast.iter_child_nodes(node):
            outside = child is node.args or child in getattr(node, "decorator_list", [])
            _check_modules_used(child, local if outside else inner, modules, allowed)
        return
    if isinstance(node, _COMPREHENSIONS):
        _check_modules_used(node.generators[0].iter, local, modules, allowed)
        targets = [target for part in node.generators for target in ast.walk(part.target)]
        local = local | {target.id for target in targets if isinstance(target, ast.Name)}
        parts = [part.iter for part in node.generators[1:]] + [test for part in node.generators for test in part.ifs]
        for part in [*parts, *([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])]:
            _check_modules_used(part, local, modules, allowed)
        return
    for child in ast.iter_child_nodes(node):
        _check_modules_used(child, local, modules, allowed)


def _check_path(path: list[str], line: int, allowed: frozenset[str]) -> None:
    for place, name in enumerate(path[1:], start=1):
        last = place == len(path) - 1
        if name.startswith("_") or _foreign(name, allowed) or (last and _is_module(path[place - 1], name)):
            raise Refused(GateRule.IMPORTS, f"line {line}: {'.'.join(path)}")


def _path(node: ast.Attribute) -> list[str]:
    """A chain of names such as collections.abc.Mapping, or nothing where it hangs on something else."""
    names = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    return [value.id, *names[::-1]] if isinstance(value, ast.Name) else []


def _bound_in(scope: ast.AST) -> frozenset[str]:
    """Names that a function or lambda binds itself: parameters, and what its own statements assign."""
    arguments: ast.arguments = scope.args  # type: ignore[attr-defined] # all scopes have them
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in every if argument is not None}
    body = scope.body if isinstance(scope.body, list) else [scope.body]  # type: ignore[attr-defined] # as above
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)
    return frozenset(names)


def _foreign(name: str, allowed: frozenset[str]) -> bool:
    return name in sys.stdlib_module_names and name not in allowed


def _is_module(parent: str, name: str) -> bool:
    """Whether a public name out of a module is a module itself; random.random, copy.copy and bisect.bisect are functions."""
    return name in sys.stdlib_module_names and name != parent.rpartition(".")[2]


def _hidden(name: str) -> bool:
    return is_special(name) or name in FRAME_ATTRIBUTES


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.name
    elif isinstance(node, ast.MatchClass):
        yield from node.kwd_attrs


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _names_plainly(call: ast.Call) -> bool:
    """Whether a call that looks attributes up names them by public constants."""
    name = callee(call)
    if name in ("getattr", "hasattr"):
        given = call.args[1:2]
    elif name == "methodcaller":
        given = call.args[:1]
    elif name == "attrgetter":
        given = call.args
    else:
        return False
    texts = [argument.value if isinstance(argument, ast.Constant) else None for argument in given]
    return bool(texts) and all(
        isinstance(text, str) and not any(part.startswith("_") or _hidden(part) for part in text.split(".")) for text in texts
    )
