"""`spade gate FILE`: judges an environment that a person wrote, and tells what each rule saw.

In: a file of the contract, a hint, the packages that it may import. Out: an exit code (0 admitted, 1 refused, 2 could not run)
and text or JSON, escaped. Who calls: infra.cli. Blocks for about a second. Tries up to TRIES times where the machine interrupts a
judgement.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

import msgspec

from infra.actions import ActionForm
from infra.plaintext import escape_line
from schemas.errors import SandboxError
from workers.gate import ALLOWED_IMPORTS, judge
from workers.gate.advice import ADVICE
from workers.gate.rules import GateInterrupted, GateRule, Verdict
from workers.sandbox import open_sandbox

ADMITTED: Final = 0
REFUSED: Final = 1
COULD_NOT_RUN: Final = 2
TRIES: Final = 3
MOST_BYTES: Final = 1024 * 1024  # of a file that is read at all; the gate's own bound is a rule, and lower


def gate_file(
    path: Path,
    hint: str,
    as_json: bool,
    *,
    required_level: str = "any",
    max_turns: int = 25,
    form: ActionForm = "plain",
    packages: Sequence[str] = (),
    out: TextIO | None = None,
) -> int:
    """Judges the file at `path`, in jails that hold `packages`, as where a recipe allows these in `sandbox.packages`. Prints to
    `out` (standard output) or, what could not run, to standard error."""
    out = out or sys.stdout
    try:
        source = _read(path)
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        return _could_not_run(f"{path}: {told}. Give a Python file of the environment contract (`spade gate --help` shows one)")
    try:
        sandbox = open_sandbox("zygote", required_level=required_level, packages=packages)
    except SandboxError as error:
        return _could_not_run(str(error))
    try:
        verdict, cause = None, ""
        for _ in range(TRIES):
            try:
                imports = ALLOWED_IMPORTS.union(packages)
                verdict = judge(sandbox, source, hint, max_turns=max_turns, form=form, allowed_imports=imports)
                break
            except GateInterrupted as interrupted:
                cause = str(interrupted)
    finally:
        sandbox.close()
    if verdict is None:
        return _could_not_run(f"{path}: no verdict in {TRIES} tries: {cause}. Try again when the machine is less busy")
    out.write(_as_json(verdict, sandbox.level) if as_json else _as_text(path, verdict, sandbox.level))
    return ADMITTED if verdict.admitted else REFUSED


def _read(path: Path) -> str:
    """The text of a plain file; a pipe or a device could keep the reader for ever. Raises OSError, UnicodeDecodeError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MOST_BYTES} bytes")
    return content.decode("utf-8")


def _as_text(path: Path, verdict: Verdict, level: str) -> str:
    lines = [
        f"  {'ok    ' if proof.passed else 'FAILED'} {proof.rule:18} {_numbers(proof.numbers)}".rstrip()
        for proof in verdict.proof
    ]
    head = "admitted" if verdict.admitted else f"refused by rule {verdict.rule}: {escape_line(verdict.evidence)}"
    if not verdict.admitted:
        lines.append(f"  what to do: {ADVICE[GateRule(verdict.rule)]}")
    foot = f"  sandbox level {level}, {verdict.cpu_s:.2f} s of CPU, {verdict.wall_s:.2f} s"
    return "\n".join([f"{escape_line(str(path))}: {head}", *lines, foot, ""])


def _as_json(verdict: Verdict, level: str) -> str:
    record = {
        "admitted": verdict.admitted,
        "rule": verdict.rule,
        "evidence": escape_line(verdict.evidence),
        "advice": "" if verdict.admitted else ADVICE[GateRule(verdict.rule)],
        "proof": verdict.proof,
        "source_digest": verdict.source_digest,
        "play_digest": verdict.play_digest,
        "witness_min_return": verdict.witness_min_return,
        "witness_mean_return": verdict.witness_mean_return,
        "reward_min": verdict.reward_min,
        "cpu_s": verdict.cpu_s,
        "wall_s": verdict.wall_s,
        "sandbox_level": level,
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n"


def _numbers(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in numbers.items())


def _could_not_run(cause: str) -> int:
    sys.stderr.write(f"error: {escape_line(cause)}\n")
    return COULD_NOT_RUN
