"""What an executor is in the lab: its sizes, and what a pass costs. One TOML file each, here or anybody's own."""
