"""How a role touches the outside: settings, Kafka, MinIO, metrics, logging."""
