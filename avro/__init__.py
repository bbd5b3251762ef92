"""The event contract: Avro schemas, their Python types, encoding."""
