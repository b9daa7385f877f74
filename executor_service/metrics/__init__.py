"""What Prometheus may know of an executor: added up on the engine's thread, formatted when it is asked for."""
