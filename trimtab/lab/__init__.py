"""What shows the product off, and what hurts it on purpose: demo, drills, validation of the simulation."""
