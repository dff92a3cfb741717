-- One table a kind of record. Rows carry where their record stood in the log; of several rows with one key the one that stood
-- lowest counts (_version = 2^64 - 1 - offset). Redelivered blocks are dropped by their token within the last 1000 blocks.

-- runs as they started, are ending and finished: one row an event
CREATE TABLE IF NOT EXISTS runs
(
    run_id String,
    event LowCardinality(String),
    recipe_name String,
    recipe_json String,
    seed UInt64,
    steps UInt32,
    dialect LowCardinality(String),
    code_digest String,
    corpus_digest String,
    tokenizer_digest String,
    policy_place String,
    last_generation Int32,
    drain_steps UInt32,
    final_version Int32,
    final_digest String,
    agent_samples UInt64,
    designer_samples UInt64,
    cause String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, event)
SETTINGS non_replicated_deduplication_window = 1000;

-- units of work as they were handed out, without their contents
CREATE TABLE IF NOT EXISTS requests
(
    run_id String,
    stage LowCardinality(String),
    unit_id String,
    generation Int32,
    step Int32,
    design_attempt Int32,
    policy_version Int32,
    items UInt32,
    env_ids Array(String),
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, stage, unit_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- designs as the model wrote them, without tokens
CREATE TABLE IF NOT EXISTS designs
(
    run_id String,
    generation Int32,
    env_id String,
    slot UInt32,
    design_attempt UInt32,
    unit_id String,
    skill LowCardinality(String),
    document_id String,
    design_group String,
    source String,
    hint String,
    parse_error String,
    stop_reason LowCardinality(String),
    lost String,
    prompt_tokens UInt32,
    completion_tokens UInt32,
    policy_version Int32,
    policy_digest String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- what the gate said of each design
CREATE TABLE IF NOT EXISTS verdicts
(
    run_id String,
    generation Int32,
    env_id String,
    slot UInt32,
    design_attempt UInt32,
    skill LowCardinality(String),
    document_id String,
    design_group String,
    valid Bool,
    rule LowCardinality(String),
    evidence String,
    source String,
    full_source String,
    hint String,
    source_digest String,
    signature Array(Int64),
    proof_json String,
    witness_min_return Float64,
    witness_mean_return Float64,
    reward_min Float64,
    gate_cpu_s Float64,
    gate_wall_s Float64,
    proposal_topic LowCardinality(String),
    proposal_partition UInt32,
    proposal_offset UInt64,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- a generation's slots, decided
CREATE TABLE IF NOT EXISTS slots_closed
(
    run_id String,
    generation Int32,
    policy_version Int32,
    members Array(String),
    duplicates Array(String),
    missing Array(UInt32),
    missing_reasons Array(String),
    rejected Array(String),
    proposed UInt32,
    rejected_by_rule Map(String, UInt32),
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation)
SETTINGS non_replicated_deduplication_window = 1000;

-- one episode a row, its tokens counted, its texts in full
CREATE TABLE IF NOT EXISTS episodes
(
    run_id String,
    generation Int32,
    step Int32,
    env_id String,
    play_id String,
    unit_id String,
    arm LowCardinality(String),
    play_index UInt32,
    env_seed UInt64,
    episode_return Float64,
    won Bool,
    terminated Bool,
    end_reason LowCardinality(String),
    lost String,
    observations Array(String),
    actions Array(String),
    rewards Array(Float64),
    final_observation String,
    tokens UInt32,
    sampled_tokens UInt32,
    policy_version Int32,
    policy_digest String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id, step, arm, play_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- plays that were repeated, as asked for and as found
CREATE TABLE IF NOT EXISTS audits
(
    run_id String,
    generation Int32,
    step Int32,
    env_id String,
    play_id String,
    state LowCardinality(String),
    equal Bool,
    difference String,
    lost String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, play_id, state)
SETTINGS non_replicated_deduplication_window = 1000;

-- both arms of an environment at a step
CREATE TABLE IF NOT EXISTS scores
(
    run_id String,
    generation Int32,
    step Int32,
    env_id String,
    plain_plays UInt32,
    plain_mean Float64,
    plain_win_rate Float64,
    hint_plays UInt32,
    hint_mean Float64,
    hint_win_rate Float64,
    lost UInt32,
    dropped UInt32,
    pairs UInt32,
    regret Float64,
    regret_se Float64,
    evicted String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id, step)
SETTINGS non_replicated_deduplication_window = 1000;

-- a generation's designs as the designer is trained on them
CREATE TABLE IF NOT EXISTS rewards
(
    run_id String,
    generation Int32,
    env_id String,
    slot UInt32,
    design_attempt UInt32,
    skill LowCardinality(String),
    document_id String,
    design_group String,
    valid Bool,
    w Float64,
    win_rate Float64,
    hint_win_rate Float64,
    regret Float64,
    regret_se Float64,
    reward Float64,
    advantage Float64,
    trained Bool,
    evicted String,
    repeated Float64,
    identical Bool,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation, env_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- closed generations
CREATE TABLE IF NOT EXISTS generations
(
    run_id String,
    generation Int32,
    members UInt32,
    proposed UInt32,
    valid UInt32,
    rejected_by_rule Map(String, UInt32),
    missing UInt32,
    duplicates UInt32,
    win_rate Float64,
    hint_win_rate Float64,
    regret Float64,
    regret_se Float64,
    designer_reward Float64,
    repeats Float64,
    vendi Float64,
    lost UInt32,
    empty String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, generation)
SETTINGS non_replicated_deduplication_window = 1000;

-- what each step trains, by id
CREATE TABLE IF NOT EXISTS batches
(
    run_id String,
    step Int32,
    generation Int32,
    designer_generation Int32,
    drain Bool,
    agent_samples UInt32,
    designer_samples UInt32,
    sample_ids Array(String),
    roles Array(LowCardinality(String)),
    advantages Array(Float64),
    policy_versions Array(Int32),
    lost UInt32,
    evicted UInt32,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, step)
SETTINGS non_replicated_deduplication_window = 1000;

-- finished optimizer steps
CREATE TABLE IF NOT EXISTS steps
(
    run_id String,
    step Int32,
    drain Bool,
    skipped String,
    loss Float64,
    grad_norm Float64,
    learning_rate Float64,
    agent_samples UInt32,
    agent_tokens UInt64,
    agent_loss Float64,
    agent_ess Float64,
    agent_lag_mean Float64,
    agent_lag_max Int32,
    agent_logratio_max Float64,
    agent_entropy Float64,
    designer_samples UInt32,
    designer_tokens UInt64,
    designer_loss Float64,
    designer_ess Float64,
    designer_lag_mean Float64,
    designer_lag_max Int32,
    designer_logratio_max Float64,
    designer_entropy Float64,
    trained Array(String),
    seconds Map(String, Float64),
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, step)
SETTINGS non_replicated_deduplication_window = 1000;

-- published policies
CREATE TABLE IF NOT EXISTS policies
(
    run_id String,
    policy_version Int32,
    digest String,
    place String,
    weights_norm Float64,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, policy_version, digest)
SETTINGS non_replicated_deduplication_window = 1000;

-- policies on fixed suites
CREATE TABLE IF NOT EXISTS evaluations
(
    run_id String,
    suite LowCardinality(String),
    policy_version Int32,
    policy_digest String,
    items UInt32,
    won UInt32,
    win_rate Float64,
    by_family Map(String, Float64),
    sampling LowCardinality(String),
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (run_id, suite, policy_version, sampling, event_id)
SETTINGS non_replicated_deduplication_window = 1000;

-- records that could not be used, and where they stood
CREATE TABLE IF NOT EXISTS dead_letters
(
    run_id String,
    origin_topic LowCardinality(String),
    origin_partition UInt32,
    origin_offset UInt64,
    reason String,
    data_base64 String,
    event_id String,
    causation_id String,
    created_at DateTime64(3, 'UTC'),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _version UInt64
)
ENGINE = ReplacingMergeTree(_version)
ORDER BY (origin_topic, origin_partition, origin_offset)
SETTINGS non_replicated_deduplication_window = 1000;
