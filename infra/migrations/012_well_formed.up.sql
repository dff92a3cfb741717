-- How many of an evaluation's instances were played with every turn in the setting's form.
ALTER TABLE evaluations ADD COLUMN IF NOT EXISTS formed UInt32 DEFAULT 0;
