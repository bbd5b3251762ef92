"""What runs inside vLLM: the worker extension and the reload route."""
