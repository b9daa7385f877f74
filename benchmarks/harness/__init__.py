"""What the programs in benchmarks/ share."""
