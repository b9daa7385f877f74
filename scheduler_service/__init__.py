"""The scheduler service: a pure planning core (`core/`) in a thin gRPC shell."""
