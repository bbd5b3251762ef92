"""`leyden demo`: a small model learns to use a calculator, over the same path as in production."""
