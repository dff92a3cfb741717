"""`spade corpus add PATH...`: documents of any kind of file into a corpus that a recipe draws from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from infra.cli import options
from infra.cli.interrupts import stoppable
from infra.plaintext import escape_line
from schemas.errors import CorpusError


def add(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help=".txt, .md, .jsonl, .parquet, folders of them, saved Hugging Face datasets."),
    ],
    to: Annotated[Path, typer.Option("--to", help="The corpus: a new folder, or one to add to.", show_default=False)],
    words: Annotated[int, typer.Option(min=10, max=20_000, help="Longest document; longer texts are cut at paragraphs.")] = 800,
    least: Annotated[int, typer.Option("--least", min=1, max=20_000, help="Shortest document, in words.")] = 20,
    tag: Annotated[str, typer.Option(help="Tag of all: math, science or code. Default: by each text.", show_default=False)] = "",
    skill: Annotated[str, typer.Option(help="Skill that all fit. Default: any.", show_default=False)] = "",
    text_column: Annotated[
        str, typer.Option("--text-column", help="The column that is the document. Default: the likeliest.", show_default=False)
    ] = "",
    most: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most documents of the corpus.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Add documents to a corpus: cut to a length, without duplicates, tagged math, science or code; what was skipped is counted.

    A recipe draws from it with corpus.path = FOLDER, and with corpus.tags in turn
    from the documents of each tag. Exit 0: something was added, or all was there
    already; 2: nothing could be used, and why.
    """
    from infra.corpus import require_tag
    from infra.corpus.adding import Cut, add_documents
    from infra.corpus.reading import read_paths

    require_tag(tag, "--tag")
    if least > words:
        raise CorpusError(f"--least {least} is more than --words {words}", "Make it smaller")
    cut = Cut(most_words=words, least_words=least, most_documents=most, tag=tag, skill=skill)
    with stoppable():
        report = add_documents(read_paths(paths, text_column), to, cut, _told)
    known = report.skipped["duplicate"] + report.skipped["near duplicate"]
    if not report.added and not known:
        reasons = "; ".join(f"{reason} {count} ({report.examples[reason]})" for reason, count in report.skipped.most_common())
        raise CorpusError(f"nothing of it can be used: {reasons or 'there is no file'}", "Name other paths, or correct these")
    if as_json:
        print(json.dumps(vars(report)))  # noqa: T201
        return
    tags = ", ".join(f"{name or 'untagged'} {count}" for name, count in sorted(report.by_tag.items(), key=lambda one: -one[1]))
    options.out.print(
        f"{report.added} documents added to {to} ({report.words} words; {tags or 'none'}), "
        f"which now holds {report.before + report.added}"
    )
    if report.skipped:
        table = Table("skipped", "", "the first", title_justify="left")
        for reason, count in report.skipped.most_common():
            table.add_row(reason, str(count), options.cell(report.examples[reason]))
        options.out.print(table, soft_wrap=False)
    options.out.print(f"draw from it: spade run nano --set corpus.path={escape_line(str(to))}")


def _told(line: str) -> None:
    """Progress: on standard error, so that --json stays JSON."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201
