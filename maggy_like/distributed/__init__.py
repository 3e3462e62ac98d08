"""What several workers need to train one model together; the only part of a worker that uses torch."""
