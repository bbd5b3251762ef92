"""All that writes events: gateway, runner, emit, tasks, trainer."""
