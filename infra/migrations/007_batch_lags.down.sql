ALTER TABLE batches
    DROP COLUMN IF EXISTS newest_versions,
    DROP COLUMN IF EXISTS lags;
