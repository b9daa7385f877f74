"""Runs side by side: a table and charts, as one HTML file that needs nothing else, or as pictures."""
