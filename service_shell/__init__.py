"""What surrounds a service, whichever it is: settings, addresses, TLS, callers, logs, metrics and recordings.

Knows nothing of scheduling, of executors, or of the contract (docs/adr/0034).
"""
