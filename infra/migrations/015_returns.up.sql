-- mean return of the instances; 0 also where a record of an earlier version does not tell
ALTER TABLE evaluations ADD COLUMN IF NOT EXISTS mean_return Float64 DEFAULT 0;
