"""Environments of the text contract as gymnasium.Env, and the registration of the examples.

In: an object of the contract (docs/SANDBOX.md). Out: an Env whose observations and actions are texts. `register_examples()`, then
`gymnasium.make("spade/SeatingOrder-v0")`; or, as gymnasium's plugins are used, `gymnasium.make` with
"infra.examples.registered:spade/SeatingOrder-v0". The code runs in the caller's process, without a jail: hand it what you trust.
"""

from __future__ import annotations

import importlib
import string
from typing import Any, Final, Protocol

import gymnasium
from gymnasium.spaces import Text

from infra.actions import with_hint
from infra.examples import EXAMPLES

CHARSET: Final = string.printable.replace("\x0b", "").replace("\x0c", "").replace("\r", "")
LONGEST: Final = 65_536  # letters of an observation: what a frame of the jail holds
LONGEST_ACTION: Final = 4096
MAX_TURNS: Final = 25
SEEDS: Final = 2**31


class TextContract(Protocol):
    """An environment of the contract."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays one action."""
        ...


class TextEnv(gymnasium.Env[str, str]):  # type: ignore[misc] # gymnasium is not read by mypy here
    """One environment of the contract. Letters outside the spaces' charset are shown as "?", so that every observation lies in
    its space. The hint, where there is one, follows the first observation, as it does in a run. Reset without a seed draws one
    from gymnasium's own generator: episodes then repeat by the last seed that was given."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - gymnasium's own declaration

    def __init__(self, contract: TextContract, hint: str = "", render_mode: str | None = None) -> None:
        self.contract = contract
        self.hint = hint
        self.render_mode = render_mode
        self.observation_space = Text(min_length=0, max_length=LONGEST, charset=CHARSET)
        self.action_space = Text(min_length=0, max_length=LONGEST_ACTION, charset=CHARSET)
        self._shown = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode; the first observation."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(SEEDS)) if seed is None else seed
        observation, info = self.contract.reset(seed=drawn)
        self._shown = _fit(with_hint(observation, self.hint or None))
        return self._shown, dict(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays one action."""
        observation, reward, terminated, truncated, info = self.contract.step(action)
        self._shown = _fit(observation)
        return self._shown, float(reward), terminated, truncated, dict(info)

    def render(self) -> str:
        """The last observation."""
        return self._shown


def make_example(name: str, setting: str, hint: str = "", render_mode: str | None = None, max_turns: int = MAX_TURNS) -> TextEnv:
    """An example by the name of its file. What `gymnasium.make` calls."""
    module = importlib.import_module(f"infra.examples.{setting}.{name}")
    kind = next(value for key, value in vars(module).items() if key.endswith("Env"))
    return TextEnv(kind(max_turns=max_turns), hint, render_mode)


def register_examples() -> None:
    """Registers all examples that are not registered yet, in the namespace `spade`."""
    for example in EXAMPLES:
        if example.gym_id in gymnasium.registry:
            continue
        gymnasium.register(
            id=example.gym_id,
            entry_point="infra.examples.gym:make_example",
            kwargs={"name": example.name, "setting": example.setting},
        )


def _fit(text: str) -> str:
    return "".join(letter if letter in CHARSET else "?" for letter in text[:LONGEST])
