-- title: Episode
-- shows: One play in full: what the environment showed, what the agent did.
-- kind: detail
-- unit: text
-- order: 200
SELECT play_id, env_id, generation, step, arm, observations, actions, rewards, final_observation, episode_return, won, end_reason, lost
FROM episodes FINAL
WHERE run_id = {run:String} AND env_id = {env:String} AND play_id = {play:String}
LIMIT 1
