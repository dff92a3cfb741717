"""Registers the examples with gymnasium when it is imported, which is gymnasium's own convention for plugins; nothing here does.

`gymnasium.make("infra.examples.registered:spade/SeatingOrder-v0")`, or `gymnasium.register_envs(infra.examples.registered)`.
"""

from infra.examples.gym import register_examples

register_examples()
