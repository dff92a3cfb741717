"""Dashboards over the environment memory: SQL files that a local page and Grafana share."""
