"""Chaos: what a run's log and store must show whatever was killed, and the storm of kills that puts it to the test."""
