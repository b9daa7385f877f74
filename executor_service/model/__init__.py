"""The model side of the executor: loading, the ragged batch, paged attention, one forward pass."""
