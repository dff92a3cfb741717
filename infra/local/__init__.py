"""The services of a laptop run: Apache Kafka and the embedded ClickHouse engine, started from packages."""
