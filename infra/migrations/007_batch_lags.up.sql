-- The age of each sample that a step trains: the newest policy that sampled it (policy_versions holds the oldest; -1 where no token
-- was sampled), and how many versions the oldest was behind the step.
ALTER TABLE batches
    ADD COLUMN IF NOT EXISTS newest_versions Array(Int32) DEFAULT [],
    ADD COLUMN IF NOT EXISTS lags Array(Int32) DEFAULT [];
