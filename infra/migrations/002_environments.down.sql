DROP VIEW IF EXISTS environments;
