"""What is known of the endpoints of a pool."""
