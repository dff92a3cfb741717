-- A long run's rows for tests/bench/memory.py: 24 environments a generation, one in 41 measured again ten generations later, six
-- skills, sources of half a kilobyte, four batches of 192 plays a generation. Every value is a hash of its number.
CREATE VIEW made AS
SELECT
    number,
    'bench' AS run,
    toInt32(intDiv(number, 24)) AS place,
    toUInt32(number % 24) AS slot,
    ['Mathematical Reasoning', 'Logical Deduction', 'Spatial Reasoning', 'Pattern Recognition', 'Optimization', 'Causal Inference'][
        1 + intDiv(number, 8) % 6] AS skill,
    concat(lower(hex(sipHash64(number))), '-', lower(hex(sipHash64(number, 1)))) AS env,
    concat(lower(hex(sipHash64(intDiv(number, 2)))), '-', lower(hex(sipHash64(intDiv(number, 2), 1)))) AS parent,
    arrayStringConcat(arrayMap(i -> hex(sipHash64(number, i)), range(32)), ' ') AS code,
    (sipHash64(number, 'win') % 9) / 8 AS win,
    (sipHash64(number, 'regret') % 9) / 8 - 0.4 AS regret,
    (sipHash64(number, 'error') % 100) / 500 AS error,
    if(number % 997 = 0, 'audit', '') AS evicted,
    toDateTime64(0, 3, 'UTC') AS at,
    18446744073709551615 - number AS version
FROM numbers(ENVIRONMENTS);

INSERT INTO standings
SELECT
    run, skill, env, place, place, slot, win, win, win, regret, error, 8, 0.5, evicted, '', '', at, 't', 0, number, version
FROM made;

INSERT INTO standings
SELECT
    run, skill, env, place + 10, place, slot, win, win, win, regret / 2, error, 8, 0.5, evicted, '', '', at, 't', 0, number, version
FROM made WHERE number % 41 = 0;

INSERT INTO verdicts
    (run_id, generation, env_id, slot, skill, valid, source, full_source, hint, signature, proof_json, _offset, _version)
SELECT
    run, place, env, slot, skill, true, code, code, 'a hint', arrayMap(i -> toInt64(sipHash64(number % 5000, i) % 4294967296), range(64)),
    '[]', number, version
FROM made;

INSERT INTO rewards
    (run_id, generation, env_id, slot, skill, valid, w, win_rate, hint_win_rate, regret, regret_se, reward, evicted, _offset, _version)
SELECT run, place, env, slot, skill, true, win, win, win, regret, error, 0.5, evicted, number, version FROM made;

INSERT INTO designs (run_id, generation, env_id, slot, skill, source, hint, _offset, _version)
SELECT run, place, env, slot, skill, code, 'a hint', number, version FROM made;

INSERT INTO prompts
    (run_id, generation, env_id, slot, skill, document_text, memory_env_ids, memory_kinds, _offset, _version)
SELECT run, place, env, slot, skill, code, [parent], ['best'], number, version FROM made;

INSERT INTO generations (run_id, generation, members, repeated, _offset, _version)
SELECT run, place, 24, map(env, toUInt32(1)), number, version FROM made WHERE number % 24 = 0;

INSERT INTO batches (run_id, step, generation, designer_generation, sample_ids, _offset, _version)
SELECT
    run, toInt32(intDiv(number, 6)), place, if(number % 24 = 0, place - 1, -1),
    arrayMap(i -> concat(env, '-', toString(i)), range(192)), number, version
FROM made WHERE number % 6 = 0;
