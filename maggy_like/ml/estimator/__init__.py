"""The Estimator that trains networks of torch on DataFrames, and the Model that it gives."""
