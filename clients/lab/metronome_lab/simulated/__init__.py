"""An executor without a device: its books are the executor's own, its clock is virtual."""
