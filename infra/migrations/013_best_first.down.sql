ALTER TABLE standings DROP INDEX IF EXISTS env_id_index;

ALTER TABLE standings DROP PROJECTION IF EXISTS by_regret;

ALTER TABLE standings RESET SETTING deduplicate_merge_projection_mode;
