"""Communication: a ROUTER on the driver, a DEALER on each worker, CURVE between them."""
