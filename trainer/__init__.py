"""The trainer: batches from the log in, optimizer steps and published policies out."""
