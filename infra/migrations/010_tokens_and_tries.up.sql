-- What was sampled, token by token, as the trainer reads it in the log: ids, log-probabilities (0 where a token was only read), and
-- which ranges of them each policy version sampled. Long columns that few questions read: compressed harder than the rest. Rows that
-- were stored before hold none; `spade memory rebuild` brings them.
ALTER TABLE episodes
    ADD COLUMN IF NOT EXISTS tries UInt32 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS faults Array(LowCardinality(String)) DEFAULT [],
    ADD COLUMN IF NOT EXISTS cuts Array(LowCardinality(String)) DEFAULT [],
    ADD COLUMN IF NOT EXISTS token_ids Array(UInt32) DEFAULT [] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS logprobs Array(Float32) DEFAULT [] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS sampled_from Array(UInt32) DEFAULT [],
    ADD COLUMN IF NOT EXISTS sampled_to Array(UInt32) DEFAULT [],
    ADD COLUMN IF NOT EXISTS sampled_by Array(Int32) DEFAULT [];

ALTER TABLE designs
    ADD COLUMN IF NOT EXISTS tries UInt32 DEFAULT 0,
    ADD COLUMN IF NOT EXISTS prompt_token_ids Array(UInt32) DEFAULT [] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS completion_token_ids Array(UInt32) DEFAULT [] CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS logprobs Array(Float32) DEFAULT [] CODEC(ZSTD(1));

-- how often the infrastructure failed before this came out
ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS tries UInt32 DEFAULT 0;

ALTER TABLE prompts ADD COLUMN IF NOT EXISTS document_tag LowCardinality(String) DEFAULT '';
