"""The OpenAI-compatible gateway that captures every call."""
