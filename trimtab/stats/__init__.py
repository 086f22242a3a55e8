"""Statistics in constant memory: means, shares, quantiles and windows over a fading past."""
