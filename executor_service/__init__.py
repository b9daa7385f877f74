"""The executor: owns the device, the paged KV cache, the swap space and the requests, and obeys plans."""
