"""Ablations: the arms of the paper's table as changes of one recipe, their results as files, and the table made of those."""
