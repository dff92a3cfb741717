-- Anti-collusion: what a hint gained for a frozen earlier policy, and whether regret went uncredited for it.
ALTER TABLE scores
    ADD COLUMN IF NOT EXISTS earlier_regret Float64 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS earlier_regret_se Float64 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS earlier_pairs UInt32 DEFAULT 0;

ALTER TABLE rewards
    ADD COLUMN IF NOT EXISTS earlier_regret Float64 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS earlier_regret_se Float64 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS uncredited Bool DEFAULT false;
