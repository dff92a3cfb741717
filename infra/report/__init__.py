"""A run's report: facts read from the store by SQL, shown in the terminal, as one HTML file and as a picture."""
