ALTER TABLE rewards
    DROP COLUMN IF EXISTS earlier_regret,
    DROP COLUMN IF EXISTS earlier_regret_se,
    DROP COLUMN IF EXISTS uncredited;

ALTER TABLE scores
    DROP COLUMN IF EXISTS earlier_regret,
    DROP COLUMN IF EXISTS earlier_regret_se,
    DROP COLUMN IF EXISTS earlier_pairs;
