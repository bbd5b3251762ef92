"""LightningRL: credit, advantage, loss, the training loop, checkpoints."""
