"""Repairs of Faust, one file a fault, applied explicitly by the stream apps."""
