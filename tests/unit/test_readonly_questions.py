"""What a read-only question may be, by the engine's syntax tree."""

from __future__ import annotations

import pytest

from infra.readonly import read_refused, text_refused

FUNCTIONS = frozenset({"numbers", "file", "url", "s3", "merge"})


@pytest.mark.parametrize(
    ("tree", "word"),
    [
        ("InsertQuery   (children 2)\n Identifier t", "InsertQuery"),
        ("Set", "Set"),
        ("DescribeQuery (children 1)\n TableExpression (children 1)\n  Function file (children 1)", "file"),
        ("SelectWithUnionQuery (children 2)\n ExpressionList\n Literal '/tmp/x'", "INTO OUTFILE"),
        ("Explain EXPLAIN\n SelectWithUnionQuery\n  ExpressionList\n   Function URL (children 1)", "URL"),
        ("SelectWithUnionQuery\n TableExpression\n  Function unheard (alias a) (children 1)", "unheard"),
        ("ShowUsers", "ShowUsers"),
        ("ShowTables", "only TABLES"),
        ("SelectWithUnionQuery (children 2)\n ExpressionList\n Set", "SETTINGS"),
        ("ShowProcesslistQuery", "ShowProcesslist"),
        ("SelectWithUnionQuery\n TableExpression\n  TableIdentifier system.processes", "system.processes"),
        ("SelectWithUnionQuery\n Function in\n  Identifier `system`.`users`", "users"),
        ("SelectWithUnionQuery\n TableExpression\n  TableIdentifier INFORMATION_SCHEMA.x", "INFORMATION_SCHEMA"),
        ("SelectWithUnionQuery\n Function dictGetOrDefault (children 1)", "dictGetOrDefault"),
        ("SelectWithUnionQuery\n Function reverseDNSQuery (children 1)", "reverseDNSQuery"),
    ],
)
def test_a_read_only_question_that_is_none_is_refused(tree: str, word: str) -> None:
    assert word in read_refused(tree, FUNCTIONS)


def test_a_plain_question_is_let_through() -> None:
    tree = "SelectWithUnionQuery\n ExpressionList\n  SelectQuery\n   Literal 1\n   TableExpression\n    Function numbers"
    assert read_refused(tree, FUNCTIONS) == ""


def test_a_system_database_as_the_default_one_is_refused() -> None:
    assert "system" in read_refused("SelectWithUnionQuery\n TableExpression\n  TableIdentifier users", FUNCTIONS, "system")


def test_tables_about_tables_may_be_read() -> None:
    tree = "SelectWithUnionQuery\n Identifier system.tables.name\n TableExpression\n  TableIdentifier system.tables"
    assert read_refused(tree, FUNCTIONS, "spade") == ""


@pytest.mark.parametrize("text", ["SELECT 1 AS `a\nb`", r"SELECT 1 AS `a\nb`", 'SELECT 1 AS "a\tb"', "SELECT 'it''s', `a\x01`"])
def test_a_name_that_could_forge_a_line_of_the_tree_is_refused(text: str) -> None:
    assert "control character" in text_refused(text)


@pytest.mark.parametrize(
    "text", ["SELECT 'a\n`b\n`' AS `c d`", "SELECT 1 -- `a\n`\n", "SELECT 1 /* `\n` */", "SELECT '\\n', \"a\""]
)
def test_texts_and_comments_may_hold_anything(text: str) -> None:
    assert text_refused(text) == ""
