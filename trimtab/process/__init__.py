"""What every process of Trimtab needs of its machine: sockets, signals, children, and Envoy's binary."""
