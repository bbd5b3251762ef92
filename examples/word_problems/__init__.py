"""A small model learns to use a calculator on word problems."""
