"""The Estimator that trains PyTorch networks on DataFrames, and the Model that it returns."""
