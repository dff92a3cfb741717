ALTER TABLE episodes DROP INDEX IF EXISTS play_id_index;

ALTER TABLE prompts DROP INDEX IF EXISTS memory_env_ids_index;

ALTER TABLE batches DROP INDEX IF EXISTS sample_ids_index;

ALTER TABLE scores DROP COLUMN IF EXISTS probe;

ALTER TABLE generations DROP COLUMN IF EXISTS repeated;

DROP TABLE IF EXISTS standings;
