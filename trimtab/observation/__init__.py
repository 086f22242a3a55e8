"""What is seen of engines and attempts: every kind of event, its order, and its form on the wire."""
