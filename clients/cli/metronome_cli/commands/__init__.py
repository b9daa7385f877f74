"""One module a command (`stack` has the three that keep a stack running)."""
