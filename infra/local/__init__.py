"""The stack on one machine: Kafka, MinIO, vLLM and the roles as supervised processes."""
