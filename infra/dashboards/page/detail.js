// One environment in a dialog: its source, hint, verdict, kin, plays; and one play in full.
import { ask, make, pairs, shown, table } from "./parts.js";

const dialog = document.getElementById("detail");
const title = document.getElementById("detail-title");
const body = document.getElementById("detail-body");
let wanted = 0;

document.getElementById("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { wanted += 1; });

function text(heading, content) {
  return content ? [make("h3", {}, heading), make("pre", { tabindex: "0", role: "region", "aria-label": heading }, content)] : [];
}

function listed(heading, columns, rows) {
  return rows.length ? [make("h3", {}, heading), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heading },
    table(heading, columns, rows))] : [];
}

async function fill(heading, path, values, build) {
  const own = ++wanted;
  title.textContent = heading;
  body.replaceChildren(make("p", { class: "quiet", role: "status" }, "Loading"));
  if (!dialog.open) dialog.showModal();
  title.focus();
  dialog.scrollTop = 0;
  try {
    const { body: found } = await ask(path, values);
    if (own === wanted) body.replaceChildren(...build(found));
  } catch (problem) {
    if (own === wanted) body.replaceChildren(make("p", { role: "alert" }, problem.message));
  }
}

export function showEnvironment(run, env) {
  return fill(`Environment ${env}`, "/api/environment", { run, env }, (found) => environment(run, found));
}

function environment(run, found) {
  const verdict = found.verdict ?? {};
  const reward = found.reward ?? {};
  const link = (id) => make("button", { type: "button", onclick: () => showEnvironment(run, id) }, id);
  const kin = [{ name: "env_id", label: "environment", cell: (row) => link(row.env_id) }, { name: "kind", label: "as" },
    { name: "generation" }, { name: "win_rate", label: "win rate", unit: "share" }, { name: "regret", unit: "return" }];
  const plays = [
    { name: "play_id", label: "play", cell: (row) => make("button", { type: "button",
      onclick: () => showEpisode(run, found.env_id, row.play_id), "aria-label": `Play ${row.play_id}` }, row.play_id.slice(0, 8)) },
    { name: "step" }, { name: "arm" }, { name: "policy_version", label: "policy" }, { name: "episode_return", label: "return", unit: "return" },
    { name: "won" }, { name: "turns" }, { name: "ended", cell: (row) => row.lost || row.end_reason }];
  const came = (verdict.valid ? "admitted" : verdict.rule ? `refused by rule ${verdict.rule}: ${verdict.evidence}` : "not judged yet");
  const scored = verdict.valid && found.reward;
  return [
    pairs([
      ["Generation", found.generation], ["Skill", found.prompt.skill], ["Designed by policy", found.design?.policy_version],
      ["Gate", came], ["Place", found.place],
      ["Win rate", scored ? `${shown(reward.win_rate, "share")} without hint, ${shown(reward.hint_win_rate, "share")} with it` : ""],
      ["Regret", scored ? `${shown(reward.regret, "return")} ± ${reward.regret_se.toFixed(3)}` : ""],
      ["Designer's reward", found.reward ? reward.reward : ""], ["Evicted", reward.evicted ?? ""],
      ["Trained in steps", found.trained.map((one) => one.step).join(", ")],
    ]),
    ...text("Hint", found.design?.hint || verdict.hint),
    ...text("Source", verdict.full_source || found.design?.source),
    ...listed("How difficult it was", [{ name: "measured", label: "generation" },
      { name: "probed", label: "by", cell: (row) => row.probed ? "probe plays" : "its own plays" },
      { name: "win_rate", label: "win rate", unit: "share" }, { name: "hint_win_rate", label: "with hint", unit: "share" },
      { name: "regret", unit: "return" }, { name: "reward" }], found.measured.length > 1 ? found.measured : []),
    ...listed("Plays", plays, found.plays),
    ...listed("What the gate saw", [{ name: "rule" }, { name: "passed" }, { name: "evidence" }], found.proof),
    ...listed("Shown to the designer from memory", kin, found.parents),
    ...listed("Later designs that were shown this one", kin, found.children),
    ...text(`Document: ${found.prompt.document_title || found.prompt.document_id} ${found.prompt.document_tag}`, found.prompt.document_text),
  ];
}

function showEpisode(run, env, play) {
  return fill(`Play ${play}`, "/api/episode", { run, env, play }, (found) => {
    const turns = found.actions.flatMap((action, at) => [
      turn("environment", found.observations[at]), turn("agent", action, found.rewards[at])]);
    return [
      make("p", {}, make("button", { type: "button", class: "link", onclick: () => showEnvironment(run, env) }, `Back to environment ${env}`)),
      pairs([["Step", found.step], ["Arm", found.arm], ["Return", shown(found.episode_return, "return")], ["Won", found.won],
        ["Ended by", found.lost || found.end_reason]]),
      ...turns, turn("environment", found.final_observation),
    ];
  });
}

function turn(who, said, reward) {
  const paid = reward === undefined ? "" : `, reward ${shown(reward, "return")}`;
  return make("div", { class: `turn ${who}` }, make("p", { class: "quiet" }, who + paid), make("pre", {}, said || "(nothing)"));
}
