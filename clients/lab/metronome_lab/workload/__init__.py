"""Requests to play: read from published traces, or drawn from distributions."""
