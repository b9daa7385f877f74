"""The paged KV cache: integers that say who holds which block, and the tensors behind them."""
