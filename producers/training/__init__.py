"""Training from a script: rounds of tasks out, trajectories and new versions awaited."""
