"""The wire: a ROUTER on the driver, a DEALER per worker, CURVE between them."""
