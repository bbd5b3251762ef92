"""The Faust processors: assemble trajectories, group them, ask about them."""
