"""The same workloads on real services, over gRPC and in real time."""
