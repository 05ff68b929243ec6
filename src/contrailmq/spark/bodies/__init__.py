"""Bodies as typed rows: JSON, Avro and Protobuf, with their schemas. For the sources and for `pipeline tables`."""
