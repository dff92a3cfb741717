"""Which commands there are, and how an error becomes one line and an exit code. Called by `main` and by tests."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

import typer

from infra.cli import (
    ablate,
    archive,
    chaos,
    checks,
    corpus,
    dashboard,
    demo,
    evaluate,
    export,
    local,
    memory,
    memoryviews,
    models,
    nano,
    plan,
    pool,
    replay,
    runs,
    stages,
    tables,
    why,
)
from infra.clientlogs import quieten_kafka
from infra.plaintext import escape_line
from schemas.errors import DiskFullError, SpadeError

LONGEST_ERROR = 4000
app = typer.Typer(
    name="spade",
    help="Self-play in executable environments as a streaming system. Start with `spade demo`.",
    epilog="Example: spade demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo", epilog="Example: spade demo --dir runs/first")(demo.demo)
app.command("up", epilog="Example: spade up && spade run infra/recipes/tiny.toml && spade down")(local.up)
app.command("down", epilog="Example: spade down")(local.down)
app.command("run", epilog="Example: spade run nano --set schedule.steps=20; later: spade run --resume RUN")(runs.run)
app.command("plan", epilog="Example: spade plan qwen3-8b-games --set machine.gpu_gib=141")(plan.plan)
app.command("work", epilog="Example: spade work rollout --processes 4 --broker kafka.lan:9092")(stages.work)
app.command("stream", epilog="Example: spade stream score --broker kafka.lan:9092")(stages.stream)
app.command("train", epilog="Example: spade train --run nano-20260101-120000-ab12")(stages.train)
app.command("topics", epilog="Example: spade topics --broker kafka.lan:9092 --partitions 24")(tables.topics)
app.command("migrate", epilog="Example: spade migrate --store clickhouse://default@clickhouse.lan:8123/spade")(tables.migrate)
app.command("status", epilog="Example: spade status --run nano-20260101-120000-ab12")(tables.status)
app.command("dashboard", epilog="Example: spade dashboard --run nano-20260101-120000-ab12")(dashboard.dashboard)
app.command("doctor", epilog="Example: spade doctor")(checks.doctor)
app.command("gate", epilog="Example: spade gate my_env.py --hint 'keep a running value' --packages numpy")(checks.gate)
app.command("chaos", epilog="Example: spade chaos tiny --kills 10 --seed 1")(chaos.chaos)
app.command("eval", epilog="Example: spade eval runs/first/policies/v00000012-0f3a... --suite nano")(evaluate.evaluate)
app.command("ablate", epilog="Example: spade ablate --quick")(ablate.ablate)
app.command("why", epilog="Example: spade why 7d0e1c9a")(why.why)
app.command("replay", epilog="Example: spade replay 7d0e1c9a-... --actions-only")(replay.replay)
app.command("export", epilog="Example: spade export nano-20260101-120000-ab12 --version 40 --out models/mine")(export.export)
app.command("archive", epilog="Example: spade archive nano-20260101-120000-ab12 --out archives/first")(archive.archive)
memory_app = typer.Typer(invoke_without_command=True, epilog="Example: spade memory --sql 'SELECT count() FROM episodes' --json")
memory_app.callback()(memoryviews.views)
memory_app.command("digest", epilog="Example: spade memory digest --run nano-20260101-120000-ab12")(memory.digest)
memory_app.command(
    "rebuild", epilog="Example: spade memory rebuild --archive archives/first --store clickhouse://default@ch.lan:8123/again"
)(memory.rebuild)
app.add_typer(memory_app, name="memory")
corpus_app = typer.Typer(
    help="Documents that the designer is given.", no_args_is_help=True, epilog="Example: spade corpus add notes --to corpora/mine"
)
corpus_app.command("add", epilog="Example: spade corpus add notes.parquet essays --to corpora/mine --words 400")(corpus.add)
app.add_typer(corpus_app, name="corpus")
pool_app = typer.Typer(
    help="Environments that are made once.", no_args_is_help=True, epilog="Example: spade pool make --size 64 --to pools/first"
)
pool_app.command("make", epilog="Example: spade pool make --by designer --size 64 --to pools/first")(pool.make)
app.add_typer(pool_app, name="pool")
model_app = typer.Typer(help="Real models without a model hub.", no_args_is_help=True, epilog="Example: spade model smollm2")
model_app.command("smollm2", epilog="Example: spade model smollm2 && spade run smollm2")(models.smollm2)
app.add_typer(model_app, name="model")
nano_app = typer.Typer(help="The nano model that the demo trains.", no_args_is_help=True, epilog="Example: spade nano build")
nano_app.command("build", epilog="Example: spade nano build --out /tmp/nano")(nano.build)
nano_app.command("census", epilog="Example: spade nano census --out census.json")(nano.census)
app.add_typer(nano_app, name="nano")


def error_lines(error: SpadeError) -> list[str]:
    """What a person reads: one line with cause and fix; of several faults a line each, and the fix in the last."""
    told = [*(f"error: {fault}" for fault in error.faults), error.fix] if len(error.faults) > 1 else [f"error: {error}"]
    return [escape_line(" ".join(line.split()), LONGEST_ERROR) for line in told if line]


def run_app(arguments: Sequence[str]) -> int:
    """Runs one command line; its exit code."""
    quieten_kafka()
    try:
        app(list(arguments), prog_name="spade")
    except SpadeError as error:
        print("\n".join(error_lines(error)), file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as problem:
        if problem.filename is None:
            raise
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "Free some space" if full else "Name another file or folder, or correct this one and its rights"
        told = f"{problem.filename}: {problem.strerror}. {fix}"
        print(f"error: {escape_line(told, LONGEST_ERROR)}", file=sys.stderr)  # noqa: T201
        return DiskFullError.exit_code if full else SpadeError.exit_code
    except RuntimeError as problem:
        if not str(problem).startswith("Symlink loop"):  # what pathlib says of one, and of nothing else
            raise
        print(f"error: {escape_line(str(problem), LONGEST_ERROR)}. Name another file or folder", file=sys.stderr)  # noqa: T201
        return SpadeError.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
