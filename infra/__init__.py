"""What the parts stand on: broker, store, policies, sampling maths, recipes, and the command line."""
