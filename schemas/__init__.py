"""Records, topics, ids, settings and errors: what every part of the system agrees on."""
