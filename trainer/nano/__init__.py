"""The nano model: task families, their writer, the tokenizer, the warm start and the build of the committed folder."""
