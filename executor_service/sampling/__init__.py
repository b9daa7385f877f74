"""Sampling the next token of every row, reproducible whoever shares the batch."""
