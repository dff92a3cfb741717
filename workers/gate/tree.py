"""A source's syntax tree, parsed once and walked once for all the rules that read it. In: text or a tree. Out: a tree, its nodes.

Nobody changes a tree. The last few are kept, as a judgement's rules ask one after the other.
"""

from __future__ import annotations

import ast
from functools import lru_cache


@lru_cache(maxsize=2)
def parsed(source: str) -> ast.Module:
    """The tree of a text. Raises what the parser raises."""
    return ast.parse(source)


@lru_cache(maxsize=4)
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes below and with this one, as ast.walk gives them."""
    return tuple(ast.walk(tree))
