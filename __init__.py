"""Continuous reinforcement learning for LLM agents, on Kafka."""
