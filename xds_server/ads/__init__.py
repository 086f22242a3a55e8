"""The xDS transport: state of the world and delta over one subscription. It knows no pool."""
