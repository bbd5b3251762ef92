"""The audit: ledgers, topics and manifests held against each other."""
