"""The boundary errors: everything that ends a command with a message for a person.

Each error carries one line: what is wrong, with the field, file or address, and after it the fix. `exit_code` is what the
command line returns. A bad environment or a lost episode is data and never one of these; a bug is any other exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class SpadeError(Exception):
    """Base of all boundary errors. `fix` says what a person does about it; several `faults` are shown a line each."""

    exit_code: ClassVar[int] = 1

    def __init__(self, cause: str, fix: str = "", faults: Sequence[str] = ()) -> None:
        super().__init__(f"{cause}. {fix}" if fix else cause)
        self.cause = cause
        self.fix = fix
        self.faults = tuple(faults)


class SettingsError(SpadeError):
    """A recipe, option or environment variable that can't be used."""

    exit_code = 2


class ServerError(SpadeError):
    """A server of a language model that can't be reached, refuses, or answers with what it should not."""

    exit_code = 3


class CorpusError(SpadeError):
    """A corpus folder or file that can't be read as text documents."""

    exit_code = 2


class ModelError(SpadeError):
    """A model folder that is missing, incomplete or not loadable without remote code."""

    exit_code = 2


class BrokerError(SpadeError):
    """The broker can't be reached, refuses, or can't be started."""

    exit_code = 3


class StoreError(SpadeError):
    """ClickHouse (server or embedded engine) can't be reached, refuses, or can't be started."""

    exit_code = 3


class PortInUseError(SpadeError):
    """An address that a service should listen on is taken."""

    exit_code = 3


class MigrationError(SpadeError):
    """The database's schema is ahead of this code, or a migration failed."""

    exit_code = 3


class ArtifactError(SpadeError):
    """A jar or runtime that could not be fetched or whose digest differs from the lock file."""

    exit_code = 3


class SandboxError(SpadeError):
    """The jail can't be started at the level that is required."""

    exit_code = 4


class DiskFullError(SpadeError):
    """A write failed for want of space; what stood there before is whole."""

    exit_code = 5


class RecordError(SpadeError):
    """Bytes that are not a record of their topic, or a record that is too large."""


class DeadLetterFloodError(SpadeError):
    """More bad records than the limit allows: the process stops rather than eat the log."""


class ReferenceGoneError(SpadeError):
    """A record that a batch points to is no longer in the log."""


class ClaimError(SpadeError):
    """A large record's content that is missing, changed, or can't be written; names the place."""

    exit_code = 3


class ArchiveError(SpadeError):
    """An archive's file that is missing, cut off or changed; names the file and the place in it."""

    exit_code = 2


class CheckpointError(SpadeError):
    """A checkpoint whose digests or files are wrong; names the file."""


class PolicyError(SpadeError):
    """A policy whose digest or files are wrong."""


class CanaryError(PolicyError):
    """Sampler and trainer disagree on the log-probabilities of the canary text."""


class TrainingError(SpadeError):
    """Training can't go on: too many non-finite steps, or a batch that does not follow."""


class StageTimeoutError(SpadeError):
    """A wait reached its deadline; the message names what was waited for."""


class SupervisorError(SpadeError):
    """A supervised process failed more often than its limit."""
