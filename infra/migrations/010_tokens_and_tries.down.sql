ALTER TABLE prompts DROP COLUMN IF EXISTS document_tag;

ALTER TABLE verdicts DROP COLUMN IF EXISTS tries;

ALTER TABLE designs
    DROP COLUMN IF EXISTS tries,
    DROP COLUMN IF EXISTS prompt_token_ids,
    DROP COLUMN IF EXISTS completion_token_ids,
    DROP COLUMN IF EXISTS logprobs;

ALTER TABLE episodes
    DROP COLUMN IF EXISTS tries,
    DROP COLUMN IF EXISTS faults,
    DROP COLUMN IF EXISTS cuts,
    DROP COLUMN IF EXISTS token_ids,
    DROP COLUMN IF EXISTS logprobs,
    DROP COLUMN IF EXISTS sampled_from,
    DROP COLUMN IF EXISTS sampled_to,
    DROP COLUMN IF EXISTS sampled_by;
