"""From what a law says to what Envoy gets."""
