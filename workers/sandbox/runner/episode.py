"""One episode's process: it runs the environment and answers the host, within the contract's types and sizes.

What an environment returns or raises is looked at here first, so that honest mistakes have a name; the host looks again.
"""

from __future__ import annotations

import posix
import sys

from workers.sandbox.runner.wire import make_frame, read_frame, send_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

MAX_TEXT = 60000
MAX_ACTIONS = 256
INFINITY = float("inf")


class EnvironmentFaultError(Exception):
    """What the environment did against its contract: kind and text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def describe(error: BaseException) -> str:
    """An exception as one short line with the source's line number; never raises, whatever the exception is."""
    try:
        line = 0
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "environment":
                line = trace.tb_lineno
            trace = trace.tb_next
        text = str(error)[:300].encode("utf-8", "backslashreplace").decode()
        return f"{type(error).__name__} in line {line}: {text}"
    except BaseException:  # noqa: BLE001 - the boundary to hostile code
        return "an exception that can't be shown"


def check_text(value: object, what: str) -> str:
    """`value` where it is built-in text that UTF-8 can carry."""
    if type(value) is not str:
        raise EnvironmentFaultError("types", f"{what} is a {type(value).__name__}, expected str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise EnvironmentFaultError("types", f"{what} holds surrogates") from None
    if size > MAX_TEXT:
        raise EnvironmentFaultError("size", f"{what} has {size} bytes, allowed are {MAX_TEXT}")
    return value


def check_info(value: object) -> bool:
    """Whether info is empty."""
    if type(value) is not dict:
        raise EnvironmentFaultError("types", f"info is a {type(value).__name__}, expected dict")
    return not value


def check_flag(value: object, what: str) -> bool:
    """`value` where it is a bool."""
    if type(value) is not bool:
        raise EnvironmentFaultError("types", f"{what} is a {type(value).__name__}, expected bool")
    return value


def check_reward(value: Any) -> float:
    """The reward as a finite float."""
    if type(value) not in (float, int):
        raise EnvironmentFaultError("types", f"reward is a {type(value).__name__}, expected float")
    if value != value or value in (INFINITY, -INFINITY) or not -1e300 < value < 1e300:
        raise EnvironmentFaultError("nonfinite", "reward is not a finite number")
    return float(value)


class Child:
    """One episode's process: the environment object and its channel."""

    def __init__(self, channel: int, session: int, max_turns: int) -> None:
        self.channel = channel
        self.session = session
        self.max_turns = max_turns
        self.greeting = make_frame("made", session)
        self.made: Any = None
        self.environment: Any = None

    def guard(self, call: Any, *arguments: object) -> Any:
        """Runs environment code; whatever it raises becomes an EnvironmentFaultError."""
        try:
            return call(*arguments)
        except MemoryError:
            raise EnvironmentFaultError("memory", "out of memory") from None
        except BaseException as error:  # noqa: BLE001 - the boundary to hostile code
            raise EnvironmentFaultError("raised", describe(error)) from None

    def run_module(self, code: types.CodeType | None) -> None:
        """Executes the source in a module of its own and finds its one class."""
        module = type(sys)("environment")
        sys.modules["environment"] = module
        self.guard(exec, code, module.__dict__)
        found = [
            value
            for name, value in list(module.__dict__.items())
            if isinstance(value, type) and name.endswith("Env") and value.__module__ == "environment"
        ]
        if len(found) != 1:
            raise EnvironmentFaultError("types", f"{len(found)} classes whose name ends in Env, expected 1")
        self.made = found[0]

    def make(self) -> Any:
        """A new environment object."""
        return self.guard(self.made, self.max_turns)

    def reset(self, seed: int) -> tuple[str, bool]:
        """(observation, info_empty)"""
        result = self.guard(lambda: self.environment.reset(seed=seed))
        if type(result) is not tuple or len(result) != 2:
            raise EnvironmentFaultError("types", "reset did not return (str, dict)")
        return check_text(result[0], "the first observation"), check_info(result[1])

    def step(self, action: str) -> tuple[str, float, bool, bool, bool]:
        """(observation, reward, terminated, truncated, info_empty)"""
        result = self.guard(lambda: self.environment.step(action))
        if type(result) is not tuple or len(result) != 5:
            raise EnvironmentFaultError("types", "step did not return (str, float, bool, bool, dict)")
        observation, reward, terminated, truncated, info = result
        return (
            check_text(observation, "an observation"),
            check_reward(reward),
            check_flag(terminated, "terminated"),
            check_flag(truncated, "truncated"),
            check_info(info),
        )

    def solve(self, seed: int) -> tuple[list[str]]:
        """The witness's actions for one seed, from a new object."""
        self.environment = self.make()
        self.reset(seed)
        actions = self.guard(lambda: self.environment.solution())
        if type(actions) is not list or len(actions) > MAX_ACTIONS:
            raise EnvironmentFaultError("types", f"solution did not return a list of at most {MAX_ACTIONS} actions")
        return ([check_text(action, "an action of solution") for action in actions],)

    def serve(self, code: types.CodeType | None, fault: EnvironmentFaultError | None) -> None:
        """Answers until the host closes or the environment fails. `fault`: what kept the source from being compiled to `code`."""
        frame = self.session
        try:
            if fault is not None:
                raise fault
            self.run_module(code)
            self.environment = self.make()
            posix.write(self.channel, self.greeting)
            operations: dict[str, Any] = {"reset": self.reset, "step": self.step, "solve": self.solve}
            names = {"reset": "began", "step": "stepped", "solve": "solved"}
            while True:
                request = read_frame(self.channel)
                if request is None:
                    return
                operation, frame, argument = request
                reply = operations[operation](argument)
                send_frame(self.channel, names[operation], frame, *reply)
        except EnvironmentFaultError as fault:
            send_frame(self.channel, "failed", frame, fault.kind, fault.text)
