"""`spade export`: a policy of a run as an ordinary Hugging Face folder of safetensors, for transformers, vLLM or a hub.

In: a run's folder or id, a version. Out: a folder that is there whole or not at all. Policies are published in this form; what
this adds is to find one, to hold its files against their digest, and to copy it out of a folder that the trainer prunes. Adapters
are merged in already. Raises SettingsError, ModelError, DiskFullError, PolicyError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.rundir import find_run_folder, read_notes
from infra.durable import copy_durably, draft_folder, write_error
from infra.policystore import PolicyStore, policy_files
from schemas.errors import SettingsError


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run, or its id.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist.")],
    version: Annotated[int, typer.Option(min=-1, help="Policy version; -1: the newest that stands there.")] = -1,
) -> None:
    """Write a policy of a run as a Hugging Face folder."""
    folder = find_run_folder(run)
    run_id = read_notes(folder).run_id
    policies = PolicyStore(str((folder / "policies").resolve()))
    number, found = find_policy(policies, run_id, version)
    copy_policy(found, out)
    options.out.print(
        f"policy {number} of {run_id} is in {out}: AutoModelForCausalLM.from_pretrained and vLLM load it", soft_wrap=True
    )


def find_policy(policies: PolicyStore, run_id: str, version: int) -> tuple[int, Path]:
    """A version and its folder, digest checked; -1: the newest whole one."""
    standing = sorted(policies.versions(), reverse=True)
    for number in standing if version < 0 else [version]:
        found = policies.find(number)
        if found is not None:
            return number, found
    kept = ", ".join(map(str, sorted(standing))) or "none"
    what = "policy" if version < 0 else f"policy {version}"
    raise SettingsError(
        f"run {run_id} keeps no whole {what} (versions that stand there: {kept})", "Name one of these with --version"
    )


def copy_policy(source: Path, out: Path) -> None:
    """Copies the policy's files to `out`, which appears at once and whole."""
    if out.exists():
        raise SettingsError(f"--out {out} exists already", "Name a folder that does not")
    try:
        with draft_folder(out.parent, out.name) as draft:
            for name in policy_files(source):
                copy_durably(source / name, draft.folder / name)
            draft.keep(out)
    except OSError as problem:
        raise write_error(problem, f"the policy to {out}") from problem
