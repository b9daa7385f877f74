"""Text in and out: tokenizing, incremental detokenizing, stop strings. No torch, no grpc."""
