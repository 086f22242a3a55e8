"""What asks engines whether they are well: generation probes, connections."""
