-- title: Environments
-- shows: Every design with its verdict and, once its generation has closed, how it was played and what the designer earned.
-- kind: table
-- unit: text
-- order: 110
WITH
    -- found once, as a value: what a name stands for would be asked for again wherever it stands
    (
        SELECT groupArray((env_id, generation, slot, design_attempt, skill, valid, rule))
        FROM
        (
            SELECT env_id, generation, slot, design_attempt, skill, valid, rule
            FROM verdicts
            WHERE run_id = {run:String}
                -- without a search the newest are the table's end, and no more is read
                AND ({search:String} != '' OR generation >= (
                    SELECT min(generation)
                    FROM (SELECT generation FROM verdicts WHERE run_id = {run:String} ORDER BY generation DESC LIMIT {limit:UInt32})
                ))
                AND (positionCaseInsensitive(env_id, {search:String}) > 0
                    OR positionCaseInsensitive(skill, {search:String}) > 0
                    OR positionCaseInsensitive(if(valid, 'admitted', rule), {search:String}) > 0)
            ORDER BY generation DESC, slot, design_attempt
            LIMIT {limit:UInt32}
        )
    ) AS found,
    v AS
    (
        SELECT
            one.1 AS env_id, one.2 AS generation, one.3 AS slot, one.4 AS design_attempt, one.5 AS skill, one.6 AS valid, one.7 AS rule
        FROM (SELECT arrayJoin(found) AS one)
    )
SELECT
    v.env_id AS environment,
    v.generation AS generation,
    v.skill AS skill,
    multiIf(r.evicted != '', 'evicted', v.valid, 'admitted', v.rule) AS verdict,
    if(r.env_id = '' OR NOT v.valid, NULL, r.win_rate) AS `win rate`,
    if(r.env_id = '' OR NOT v.valid, NULL, r.hint_win_rate) AS `with hint`,
    if(r.env_id = '' OR NOT v.valid, NULL, r.regret) AS regret,
    if(r.env_id = '', NULL, r.reward) AS reward
FROM v
LEFT JOIN
(
    SELECT env_id, generation, win_rate, hint_win_rate, regret, reward, evicted
    FROM rewards FINAL
    WHERE run_id = {run:String} AND (generation, env_id) IN (SELECT generation, env_id FROM v)
) AS r ON v.env_id = r.env_id AND v.generation = r.generation
ORDER BY v.generation DESC, v.slot, v.design_attempt
LIMIT 1 BY v.env_id
