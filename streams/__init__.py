"""Stream processors: pure decisions and the Faust agents that carry them out."""
