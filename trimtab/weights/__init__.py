"""From scores to the weights that Envoy gets."""
