"""Options of the gRPC server that carries ADS and LRS."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # Load reports of thousands of endpoints pass the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    # A client that vanished without a FIN is noticed, and its streams end.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Envoy pings every few seconds, also while there is nothing to say. By default gRPC takes more than two
    # such pings in 5 min for an attack and closes the connection.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 50),
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers on one address would each get some of the clients: the second must fail.
    ("grpc.so_reuseport", 0),
)
