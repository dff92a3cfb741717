"""Example environments of the setting games, one a skill. Actions are `\\boxed{...}`."""
