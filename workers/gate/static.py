"""The gate's static rules: what the syntax tree alone shows. In: source text. Out: Refused, or nothing; and the play text.

These rules make honest designs plain and catch careless ones at no cost. They are no barrier: code that is set on it can hide
from any syntax rule. The barrier is the jail; what can't be hidden from is replay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from workers.gate.reach import callee, check_calls, check_dunder, check_imports
from workers.gate.rules import GateRule, Refused
from workers.gate.tree import nodes, parsed

MAX_BYTES: Final = 32 * 1024
MAX_DEPTH: Final = 400  # levels of the syntax tree: the rules that follow it go as deep as it does
ALLOWED_IMPORTS: Final = frozenset(
    "random math string re json collections dataclasses itertools functools enum typing heapq bisect copy textwrap "  # noqa: SIM905
    "statistics fractions decimal operator abc __future__".split()
)
# method: parameters after self, with the default that the last one must have (None: no default asked)
METHODS: Final = {"__init__": ("max_turns",), "reset": ("seed",), "step": ("action",), "solution": ()}
MUTATORS: Final = frozenset(
    "append extend insert pop remove clear sort reverse add discard update setdefault popitem appendleft popleft rotate "  # noqa: SIM905
    "difference_update intersection_update symmetric_difference_update subtract seed shuffle".split()
)
MODULE_CALLS: Final = frozenset(
    "frozenset tuple list dict set range compile namedtuple TypeVar Fraction Decimal sorted zip".split()  # noqa: SIM905
)

_LONE_RETURN: Final = re.compile(r"\r(?!\n)")


def check_static(source: str, allowed_imports: frozenset[str]) -> ast.Module:
    """Runs the static rules in order; gives the tree. Raises Refused."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise Refused(GateRule.SIZE, f"{size} bytes, allowed are {MAX_BYTES}", {"bytes": size})
    tree = parse(source)
    check_depth(tree)
    environment = check_contract(tree)
    check_imports(tree, allowed_imports)
    check_calls(tree)
    check_dunder(tree)
    check_globals(tree)
    check_shared_state(tree, environment)
    check_module_work(tree)
    check_async(tree)
    return tree


def parse(source: str) -> ast.Module:
    """The source's tree. Raises Refused."""
    if found := _LONE_RETURN.search(source):
        # the parser ends a line there, most readers don't: what is cut out would not be what is seen
        line = source.count("\n", 0, found.start()) + 1
        raise Refused(GateRule.CONTRACT, f"line {line}: a carriage return without a line feed")
    try:
        return parsed(source)
    except SyntaxError as error:
        raise Refused(GateRule.CONTRACT, f"does not parse: line {error.lineno or 0}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Refused(GateRule.CONTRACT, f"does not parse: {error}") from error


def check_depth(tree: ast.Module) -> None:
    """At most MAX_DEPTH levels: no expression or chain of branches so deep that to read it would exhaust the reader."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise Refused(GateRule.CONTRACT, f"nested more than {MAX_DEPTH} levels deep", {"levels": MAX_DEPTH})


def cut_solution(source: str) -> str:
    """The play text: the source without the environment's `solution`, lines cut by the syntax tree. Takes a checked source."""
    environment = check_contract(parse(source))
    method = _methods(environment)["solution"]
    first = min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)])
    # the line feed alone ends a line for the parser, unlike str.splitlines
    lines = source.split("\n")
    return "\n".join(lines[: first - 1] + lines[method.end_lineno :])


def check_contract(tree: ast.Module) -> ast.ClassDef:
    """Exactly one class ...Env with the contract's methods; gives it."""
    found = [node for node in nodes(tree) if isinstance(node, ast.ClassDef) and node.name.endswith("Env")]
    if len(found) != 1 or found[0] not in tree.body:
        raise Refused(GateRule.CONTRACT, f"{len(found)} classes whose name ends in Env at module level, expected 1")
    environment = found[0]
    methods = _methods(environment)
    for name, parameters in METHODS.items():
        if name not in methods:
            raise Refused(GateRule.CONTRACT, f"{environment.name} has no method {name}")
        method = methods[name]
        given = method.args
        names = tuple(argument.arg for argument in [*given.posonlyargs, *given.args])
        if names != ("self", *parameters) or given.vararg or given.kwarg or given.kwonlyargs or method.decorator_list:
            raise Refused(GateRule.CONTRACT, f"{name} must take ({', '.join(('self', *parameters))})")
    for name, expected in (("__init__", 25), ("reset", None)):
        defaults = methods[name].args.defaults
        if len(defaults) != 1 or not isinstance(defaults[0], ast.Constant) or defaults[0].value != expected:
            raise Refused(GateRule.CONTRACT, f"the default of {name}'s parameter must be {expected}")
    if methods["solution"].lineno == methods["solution"].end_lineno and len(environment.body) == 1:
        raise Refused(GateRule.CONTRACT, "the class holds nothing but solution")
    return environment


def check_globals(tree: ast.Module) -> None:
    """No global statement, no change of a module-level name."""
    names = {name for statement in tree.body for name in _bound_names(statement)}
    around = _locals_around(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Global):
            raise Refused(GateRule.GLOBALS, f"line {node.lineno}: global {', '.join(node.names)}")
        for changed, line in _changes(node):
            if isinstance(changed, ast.Name) and changed.id in names and changed.id not in around[id(changed)]:
                raise Refused(GateRule.GLOBALS, f"line {line}: changes {changed.id} of the module")


def check_shared_state(tree: ast.Module, environment: ast.ClassDef) -> None:
    """No change of class attributes through the class or through self, no default argument that could be changed."""
    for node in nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            for default in [*node.args.defaults, *[item for item in node.args.kw_defaults if item]]:
                parts = [default, *(default.elts if isinstance(default, ast.Tuple) else [])]
                if not all(isinstance(part, (ast.Constant, ast.Name, ast.UnaryOp, ast.Attribute, ast.Tuple)) for part in parts):
                    raise Refused(GateRule.SHARED_STATE, f"line {default.lineno}: a default argument that can be changed")
    classes = {node.name for node in nodes(tree) if isinstance(node, ast.ClassDef)}
    shared = {name for statement in environment.body for name in _bound_names(statement)}
    own = {
        target.attr
        for node in nodes(environment)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    for node in nodes(tree):
        for changed, line in _changes(node):
            if not isinstance(changed, ast.Attribute):
                continue
            holder = changed.value
            through_class = (isinstance(holder, ast.Name) and holder.id in classes) or (
                isinstance(holder, ast.Call) and callee(holder) == "type"
            )
            if through_class or (
                isinstance(holder, ast.Name) and holder.id == "self" and changed.attr in shared and changed.attr not in own
            ):
                raise Refused(GateRule.SHARED_STATE, f"line {line}: changes {changed.attr} of the class")
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in classes:
                    raise Refused(GateRule.SHARED_STATE, f"line {node.lineno}: sets {target.attr} of the class")


def check_module_work(tree: ast.Module) -> None:
    """Module and class level: imports, definitions, constants, texts."""
    bodies = [tree.body, *[node.body for node in tree.body if isinstance(node, ast.ClassDef)]]
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass)):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
            odd = [node for node in calls if callee(node) not in MODULE_CALLS]
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if not odd and all(isinstance(target, (ast.Name, ast.Tuple, ast.List)) for target in targets):
                continue
        if isinstance(statement, ast.AsyncFunctionDef):
            raise Refused(GateRule.ASYNC, f"line {statement.lineno}: async")
        raise Refused(GateRule.MODULE_WORK, f"line {statement.lineno}: work at module or class level")


def check_async(tree: ast.Module) -> None:
    """Nothing asynchronous."""
    for node in nodes(tree):
        if isinstance(node, (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)):
            raise Refused(GateRule.ASYNC, f"line {node.lineno}: async")


def _methods(environment: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in environment.body if isinstance(node, ast.FunctionDef)}


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """Expressions whose value the node changes in place: x[...] = , x.append(...), x += , del x[...]."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        yield node.value, node.lineno
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        yield node.target, node.lineno
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        yield node.func.value, node.lineno


def _locals_around(tree: ast.Module) -> dict[int, frozenset[str]]:
    """For each name of the tree, by id of its node: what the functions around it bind themselves, and those in the outermost.

    One walk: a source may hold thousands of names, each of which would else be looked for in every function.
    """
    found: dict[int, frozenset[str]] = {}
    nothing: frozenset[str] = frozenset()
    pending: list[tuple[ast.AST, frozenset[str], bool]] = [(tree, nothing, False)]
    while pending:
        node, bound, inside = pending.pop()
        if isinstance(node, ast.Name):
            found[id(node)] = bound
        if isinstance(node, ast.FunctionDef):
            bound |= {argument.arg for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
            if not inside:
                bound |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
            inside = True
        pending += [(child, bound, inside) for child in ast.iter_child_nodes(node)]
    return found
