ALTER TABLE evaluations DROP COLUMN IF EXISTS mean_return;
