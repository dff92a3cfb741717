"""Worker pools, one for each topic of slow work: design, validate, rollout, memory."""
