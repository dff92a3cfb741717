"""A run's recipe: one typed tree with bounds; unknown keys are refused.

What stands here are the defaults, those of the mended algorithm; schemas/recipes.py reads a recipe file over them. A run's first
record carries the whole recipe as JSON.
"""

from __future__ import annotations

from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from schemas.common import SamplingSettings

GAMES_SKILLS = (
    "Mathematical Reasoning",
    "Logical Deduction",
    "Spatial Reasoning",
    "Pattern Recognition",
    "Optimization",
    "Causal Inference",
)
TOOLS_SKILLS = (
    "API Orchestration",
    "Data Retrieval",
    "State Modification",
    "Error Recovery",
    "Tool Selection",
    "Multi-Step Workflows",
)
Tag = Literal["math", "science", "code"]
TAGS: tuple[Tag, ...] = get_args(Tag)


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ScheduleSettings(Settings):
    kind: Literal["fixed", "free"] = "fixed"
    """fixed: deterministic and asynchronous. free: plays by the newest policy, no batch waits for a straggler, what is too old is
    played again; each planned sample is trained once, but no run repeats another's weights."""
    steps: int = Field(default=400, ge=1)
    """Optimizer steps, a multiple of `interval`."""
    interval: int = Field(default=4, ge=1)
    """K: steps that a generation serves."""
    delay: int = Field(default=4, ge=1)
    """Steps after a generation's first play until its designs are trained; at least K."""
    lag: int = Field(default=1, ge=0)
    """Steps that the playing policy is behind the step it plays for."""
    lead: int = Field(default=4, ge=0)
    """Further steps that the designing policy is behind."""
    memory_lag: int = Field(default=2, ge=1)
    """A generation is designed with memory up to the one this many before it."""
    max_lag_agent: int | None = Field(default=None, ge=0)
    """free: most versions that a play may be old when it is trained, at least `lag`, the distance at which plays are asked for;
    none: lag + interval."""
    max_lag_designer: int | None = Field(default=None, ge=1)
    """free: the same for a design, at least lag + lead + delay, which the schedule itself keeps to; none: that."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.delay < self.interval:
            raise ValueError(f"delay ({self.delay}) must be at least interval ({self.interval})")
        if self.steps % self.interval:
            raise ValueError(f"steps ({self.steps}) must be a multiple of interval ({self.interval})")
        designer = self.lag + self.lead + self.delay
        if self.kind == "fixed" and (self.max_lag_agent is not None or self.max_lag_designer is not None):
            raise ValueError('max_lag_agent and max_lag_designer are for kind = "free": in "fixed" the schedule is the bound')
        if self.max_lag_agent is not None and self.max_lag_agent < self.lag:
            raise ValueError(f"max_lag_agent ({self.max_lag_agent}) must be at least lag ({self.lag})")
        if self.max_lag_designer is not None and self.max_lag_designer < designer:
            raise ValueError(
                f"max_lag_designer ({self.max_lag_designer}) must be at least lag + lead + delay ({designer}), the age at which "
                "a design is trained: lower lead for a smaller one"
            )
        return self

    def lag_limit(self, role: str) -> int:
        """Most versions that a trained sample of the role ("agent", "designer") may be old; in "fixed" the schedule itself."""
        if role != "agent":
            designer = self.lag + self.lead + self.delay
            return designer if self.max_lag_designer is None else self.max_lag_designer
        free = self.lag + self.interval if self.max_lag_agent is None else self.max_lag_agent
        return self.lag if self.kind == "fixed" else free


class SamplingChoice(Settings):
    temperature: float = Field(default=0.6, gt=0, le=2)
    top_p: float = Field(default=0.95, gt=0, le=1)
    top_k: int = Field(default=20, ge=0)
    """0: off."""
    max_tokens: int = Field(default=8192, ge=1)
    """Tokens of one completion: a design or a turn."""

    def on_wire(self) -> SamplingSettings:
        return SamplingSettings(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, max_tokens=self.max_tokens)


class DesignSettings(Settings):
    environments: int = Field(default=24, ge=1)
    """n: slots of a generation."""
    attempts: int = Field(default=5, ge=1)
    """Design attempts a slot."""
    per_document: int = Field(default=1, ge=1)
    """Slots that share a document (nano: 8, the advantage group)."""
    skills_active: int = Field(default=3, ge=1)
    """Skills of one generation, in turn."""
    units: int = Field(default=2, ge=1)
    """Work packages a generation is split into."""
    hint_by_second_call: bool = False
    """Published: the hint comes from a second call."""
    duplicate: Literal["drop", "penalise"] = "drop"
    """What happens to near-duplicates when the slots close."""
    duplicate_similarity: float = Field(default=0.8, gt=0, le=1)
    train_rejected: bool = True
    """Mended: rejected designs are trained with reward 0, at most as many as validated ones."""
    advantage_group: Literal["skill", "document"] = "skill"
    advantage: Literal["centred", "z-score"] = "centred"
    signal: Literal["regret+anchor", "regret", "variance", "learning-potential", "solve-rate"] = "regret+anchor"
    regret_bound: Literal["mean", "lower"] = "lower"
    """Mended: credit by regret - 0.6 SE."""
    identical_penalty: float = Field(default=0.0, ge=0, le=1)
    """Reward lost by code identical to an earlier design of its group."""
    sampling: SamplingChoice = SamplingChoice(max_tokens=16384)
    hint_sampling: SamplingChoice = SamplingChoice(temperature=0.3, max_tokens=512)


class RolloutSettings(Settings):
    plain_plays: int = Field(default=8, ge=1)
    """Plays without hint, an environment and step."""
    hint_plays: int = Field(default=8, ge=0)
    """Plays with hint, at a generation's first step."""
    seeds: int = Field(default=8, ge=1)
    """Distinct environment seeds among the plays; play i uses seed i mod seeds."""
    paired: bool = True
    """Both arms on the same seeds."""
    units: int = Field(default=4, ge=1)
    """Work packages a step is split into."""
    max_turns: int = Field(default=25, ge=1)
    context_tokens: int = Field(default=32768, ge=64)
    sampling: SamplingChoice = SamplingChoice()
    unterminated_return: Literal["zero", "lowest"] = "lowest"
    """Return of an episode that did not terminate: 0, or min(0, lowest reward that the gate saw)."""
    train_hint_arm: bool = False
    advantage_group: Literal["environment", "environment-arm"] = "environment-arm"
    audit_share: float = Field(default=0.01, ge=0, le=1)
    tries: int = Field(default=3, ge=1)
    """Tries after infrastructure failures before a play is recorded as lost."""
    earlier_plays: int = Field(default=0, ge=0)
    """Anti-collusion: plays an arm, at a generation's first step, by a frozen earlier policy; regret is credited only where the
    hint helps that policy too. Untrained. 0: off."""
    earlier_steps: int = Field(default=0, ge=0)
    """How many versions the earlier policy is behind the playing one; 0: always version 0."""
    newest_each_turn: bool = False
    """free: an episode takes the newest policy at each of its turns, and its spans tell which; else the one it began with."""


class TrainSettings(Settings):
    learning_rate: float = Field(default=1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.1, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    correction: Literal["truncated", "masked", "sequence"] = "truncated"
    aggregate: Literal["token", "sample"] = "token"
    """Mean over tokens (mended) or over samples of token means (published)."""
    logits: Literal["sampler", "plain"] = "sampler"
    """Log-probabilities under the sampler's temperature and truncation, or (published) at temperature 1."""
    kl_beta: float = Field(default=0.0, ge=0)
    designer_weight: float = Field(default=1.0, ge=0)
    micro_batch_tokens: int = Field(default=16384, ge=64)
    """Most padded tokens of one forward pass."""
    minibatches: int = Field(default=1, ge=1)
    packing: Literal["padded", "packed"] = "padded"
    """How samples share a pass: in rows filled up to the longest, or one after another in one row, each seeing only itself."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again: less memory, a third more work."""
    zero_stage: int = Field(default=1, ge=0, le=3)
    """What is spread over the trainer's processes: optimizer (1), gradients too (2), weights too (3)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What of the trainer's state stays in main memory: nothing, the optimizer (zero_stage 1 and up), weights too (3)."""
    processes: int = Field(default=1, ge=1, le=1024)
    """Processes that share each step on the trainer's machine; one a GPU."""
    rank_deadline_s: float = Field(default=1800, gt=0)
    """How long one of several processes waits for the others within a step, before the trainer stops with the cause."""
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora_rank: int = Field(default=0, ge=0)
    """Rank of the low-rank adapters that are trained in place of the weights, which stay as they are; 0: the weights themselves.
    What is published is merged."""
    lora_alpha: float = Field(default=32, gt=0)
    """Adapters count lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = Field(default=("all-linear",), min_length=1)
    """Names of the layers with adapters, such as q_proj; all-linear: every linear layer but the output."""
    threads: int = Field(default=1, ge=1)
    """Torch threads of each trainer process."""
    checkpoint_every: Literal[1] = 1
    keep_policies: int = Field(default=4, ge=2)
    """Policies kept beyond those that open work names."""
    keep_every: int = Field(default=0, ge=0)
    """Every so many generations a policy and its checkpoint are kept for good, so that a fork can begin there; 0: none are."""
    max_skipped: int = Field(default=5, ge=1)
    """Non-finite steps in a row before the run stops."""
    batch_deadline_s: float = Field(default=3600, gt=0)
    """Longest wait for a batch."""

    @field_validator("dtype", mode="before")
    @classmethod
    def _no_halves(cls, value: object) -> object:
        if value in ("float16", "fp16", "half"):
            raise ValueError(
                f"{value} is refused: gradients of a policy underflow in it, and scaling the loss would make steps depend on the "
                "past; bfloat16 is as small"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.offload == "optimizer" and not self.zero_stage:
            raise ValueError('offload = "optimizer" needs zero_stage 1 or more: below, the optimizer steps the weights in place')
        if self.offload == "all" and self.zero_stage < 3:
            raise ValueError(f'offload = "all" needs zero_stage 3, which alone can move weights, not {self.zero_stage}')
        return self


class MemorySettings(Settings):
    enabled: bool = True
    window: int = Field(default=0, ge=0)
    """Environments remembered for selection, newest first; 0: all. Published: 200."""
    generations: int = Field(default=0, ge=0)
    """Generations looked back; 0: all."""
    seeds: int = Field(default=2, ge=0)
    """Earlier environments that a design prompt shows as good ones."""
    top: int = Field(default=10, ge=1)
    """Seeds are chosen among so many of highest priority."""
    frontier: tuple[float, float] = (0.15, 0.85)
    """Win rates without hint between which an environment may be a seed, ends included."""
    priority: Literal["regret", "reward"] = "regret"
    """What ranks seeds: regret by its lower confidence bound, or the designer's reward (nano)."""
    lcb_errors: float = Field(default=0.6, ge=0)
    """Standard errors taken off regret for the lower confidence bound; 0: the mean itself (published)."""
    diversity: Literal["minhash", "none"] = "minhash"
    """How seeds of one prompt differ: after a drawn first, each is the one farthest from those before it by MinHash distance of
    the normalised source; none: all are drawn (published)."""
    negatives: tuple[Literal["easy", "hard", "repeated", "easy-or-hard"], ...] = ("easy", "hard", "repeated")
    """Negative lines of a prompt, in order: a win rate beyond an end of `negative`, or the environment that new designs repeat
    most. Published: one that is easy or hard."""
    negative: tuple[float, float] = (0.1, 0.9)
    """Win rates below which an environment is too hard and above which it is too easy (mastered)."""
    age_out: int = Field(default=8, ge=0)
    """Generations after which a mastered environment is no longer shown, and a repetition no longer counted; 0: never."""
    probe_environments: int = Field(default=2, ge=0)
    """Probe plays: earlier environments that the present policy plays again, untrained, at each generation's first step, so that
    their difficulty stays current; of those that could be seeds and of the too hard ones the longest unmeasured. 0: off
    (published)."""
    probe_plays: int = Field(default=8, ge=2)
    """Probe plays an arm, both arms on the same seeds: a generation's budget is probe_environments * probe_plays * 2 plays."""
    wait_s: float = Field(default=300, gt=0)
    """Longest wait for the store to hold the generation that may be seen."""


class LevelSettings(Settings):
    """How a procedural pool's difficulty follows the agent (streams/levels.py)."""

    rule: Literal["accuracy", "memory"] = "accuracy"
    """accuracy: a family's level rises once it is won (RLVE). memory: near the best remembered level, above the easy ones, below
    the hard ones, as the warm start's author writes."""
    rise_at: float = Field(default=0.9, gt=0, le=1)
    """Share of plain plays at the family's level that must be won for it to rise."""
    tries: int = Field(default=8, ge=1)
    """Plain plays at the level before that is asked; the count begins anew after each asking."""
    reach: int = Field(default=3, ge=0)
    """Levels below the family's own that are drawn too."""


class CollapseSettings(Settings):
    """The collapse control (streams/collapse.py): a reaction in the design requests where designs become alike."""

    enabled: bool = False
    """Whether it may react. While diversity is well it changes nothing."""
    window: int = Field(default=6, ge=1)
    """Closed generations that are judged together, and with which the run begins that they are compared to. A multiple of the
    generations in which each skill has its turn, because skills differ."""
    vendi: tuple[float, float] = (0.8, 0.9)
    """Vendi/n of the window as shares of that of the first one: below which it reacts, and from which on it stops."""
    repeats: tuple[float, float] = (0.2, 0.3)
    """How much the share of designs that repeat an earlier one may lie above that of the first window: up to which it stops, and
    above which it reacts."""
    seeds: int = Field(default=1, ge=0)
    """Seeds that a prompt shows at most while it reacts."""
    blocked: int = Field(default=1, ge=0)
    """Clusters of near-duplicates of each skill, those with most designs in the window, that are no seeds while it reacts, but
    named as what not to write."""
    own_documents: bool = True
    """While it reacts, each slot has a document of its own, whatever design.per_document says; groups stay."""
    borrow_documents: bool = False
    """Where corpus.enabled is false: documents all the same while it reacts (an ablation)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, well = self.vendi
        if not 0 <= low <= well <= 1:
            raise ValueError(f"vendi ({low}, {well}) must be shares in order: reacts below the first, stops from the second on")
        stops, reacts = self.repeats
        if not 0 <= stops <= reacts:
            raise ValueError(f"repeats ({stops}, {reacts}) must be in order: stops up to the first, reacts above the second")
        return self


class CorpusSettings(Settings):
    enabled: bool = True
    path: str = "infra/corpus/nano"
    """A folder of .txt and .md files and of shards of `spade corpus add`; of a pool, one of environments
    (infra/corpus/pool.py). A relative path is looked for below the recipe, then among the shipped corpora."""
    tags: tuple[Tag, ...] = ()
    """Documents are drawn of these tags in turn, an equal share each, whatever the corpus holds; none: all, untagged too."""
    max_words: int = Field(default=6000, ge=10)


class ModelSettings(Settings):
    path: str = "trainer/nano/model"
    """A Hugging Face folder; a relative path is looked for below the recipe, then among the shipped models."""
    dialect: Literal["nano", "games", "tools"] = "nano"
    """How the model is spoken to: the nano model's marks, or its own chat template in one of the two settings."""
    thinking: bool = True
    """Given to the chat template as `enable_thinking`. What a model thinks stays in its context and is trained."""


class MachineSettings(Settings):
    """What `spade plan` counts with. It decides nothing in a run."""

    trainer_gpus: int = Field(default=0, ge=0)
    """GPUs that share the trainer's state; 0: the trainer runs on the CPU."""
    sampler_gpus: int = Field(default=0, ge=0)
    """GPUs of the design and rollout workers; 0: they sample on the CPU."""
    gpu_gib: float = Field(default=80, gt=0)
    """Memory of one GPU."""


class SandboxSettings(Settings):
    level: Literal["any", "rootless", "full"] = "any"
    """The weakest level that the run accepts; it refuses to start below it."""
    mode: Literal["pool", "zygote", "fresh"] = "zygote"
    packages: tuple[Literal["numpy", "gymnasium"], ...] = ()
    """What environments may import beside the standard library's part; it lies in the jails' root then."""


class ExternalSettings(Settings):
    """The model that designs where `designer` is "external": any OpenAI-compatible server. Its designs are never trained."""

    url: str = ""
    """Base address up to and with the version, such as https://api.example.com/v1; plain http with a key on loopback only."""
    model: str = ""
    """The model's name on that server."""
    mode: Literal["text", "tokens"] = "text"
    """text: chat completions, any model. tokens: this run's own prompts as token ids, for a server of a model with the same
    tokenizer that returns token ids (vLLM): a frozen designer that is spoken to exactly as a trained one."""
    key_file: str = ""
    """A file whose first line is the key."""
    key_variable: str = ""
    """Or the environment variable that holds it. Neither: the server asks for none."""
    parameters: tuple[Literal["seed", "top_k"], ...] = ("seed",)
    """text: what the server takes besides temperature, top_p and the limit."""
    limit_word: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """text: what the server calls the limit."""
    at_once: int = Field(default=8, ge=1)
    """Requests of one worker under way at a time."""
    tries: int = Field(default=5, ge=1)
    """Tries of one request where the server is busy, ill or out of reach; what it refuses is not asked again."""
    timeout_s: float = Field(default=600, gt=0)
    """Longest wait for one answer."""
    deadline_s: float = Field(default=1500, gt=0, le=1700)
    """Longest wait for all answers of a work package, tries and pauses included; below the worker's own deadline of 1,800 s."""


class ProcessSettings(Settings):
    """Processes that `spade run` starts and supervises."""

    design_workers: int = Field(default=1, ge=0)
    validate_workers: int = Field(default=1, ge=0)
    rollout_workers: int = Field(default=1, ge=0)
    memory_workers: int = Field(default=1, ge=0)
    stream_workers: int = Field(default=1, ge=0)
    threads: int = Field(default=1, ge=1)
    """Torch threads of each sampling worker."""
    sampler: Literal["transformers", "vllm"] = "transformers"
    """What samples in design and rollout workers; vllm needs the extra of that name (docs/TRAINING.md)."""
    kv_gib: float = Field(default=0, ge=0)
    """vllm: memory of a sampling worker's key-value cache; 0: 2 on a CPU, on a GPU what is left of 92 % of it."""
    restarts: int = Field(default=3, ge=0)
    """Restarts of one process before the run stops with the cause."""
    stand_still_s: float = Field(default=180, gt=0)
    """How long a stream stage may leave records untaken, or finished ones uncommitted, before it stops with the cause."""


class EvalSettings(Settings):
    suite: str = "nano"
    seeds_per_item: int = Field(default=5, ge=1)
    limit: int = Field(default=0, ge=0)
    """Instances at most; 0: all."""


class Recipe(Settings):
    """Everything that a run's processes must agree on."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$")  # part of a run's id and folder
    algorithm: Literal["mended", "published"] = "mended"
    setting: Literal["games", "tools"] = "games"
    pool: Literal["self-play", "fixed", "procedural"] = "self-play"
    """self-play: the designer writes the environments. fixed: those of the folder corpus.path are drawn, as documents are.
    procedural: the same, each of a family and a level, and `levels` says which levels are drawn."""
    designer: Literal["trained", "frozen", "external"] = "trained"
    """frozen: version 0 designs throughout, and no design is trained. external: another model does."""
    skills: tuple[str, ...] = GAMES_SKILLS
    seed: int = Field(default=0, ge=0, lt=2**63)
    partitions: int = Field(default=12, ge=1, le=1000)
    max_minutes: float = Field(default=0, ge=0)
    """Wall-clock budget after which no further generation is opened; 0: none."""
    schedule: ScheduleSettings = ScheduleSettings()
    design: DesignSettings = DesignSettings()
    rollout: RolloutSettings = RolloutSettings()
    train: TrainSettings = TrainSettings()
    memory: MemorySettings = MemorySettings()
    levels: LevelSettings = LevelSettings()
    collapse: CollapseSettings = CollapseSettings()
    corpus: CorpusSettings = CorpusSettings()
    model: ModelSettings = ModelSettings()
    machine: MachineSettings = MachineSettings()
    sandbox: SandboxSettings = SandboxSettings()
    external: ExternalSettings = ExternalSettings()
    processes: ProcessSettings = ProcessSettings()
    evaluation: EvalSettings = EvalSettings()

    @property
    def is_pooled(self) -> bool:
        """Whether environments come from a folder, and nobody designs."""
        return self.pool != "self-play"

    @property
    def reads_corpus(self) -> bool:
        """Whether a design may be given a document."""
        return self.corpus.enabled or (self.collapse.enabled and self.collapse.borrow_documents)

    @property
    def design_tokens(self) -> int:
        """Most tokens that a design is sampled of: none where environments come from a pool."""
        return 0 if self.is_pooled else self.design.sampling.max_tokens

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.design.environments % self.design.per_document:
            raise ValueError(
                f"design.environments ({self.design.environments}) must be a multiple of "
                f"design.per_document ({self.design.per_document})"
            )
        if self.rollout.seeds > self.rollout.plain_plays:
            raise ValueError(
                f"rollout.seeds ({self.rollout.seeds}) can't exceed rollout.plain_plays ({self.rollout.plain_plays})"
            )
        if self.rollout.earlier_plays and not self.rollout.hint_plays:
            raise ValueError("rollout.earlier_plays needs rollout.hint_plays: there is no regret to credit without a hint arm")
        if self.rollout.earlier_plays == 1:
            raise ValueError("rollout.earlier_plays must be 0 or at least 2: one pair says nothing")
        if self.schedule.kind == "free" and self.rollout.earlier_plays and self.rollout.earlier_steps:
            raise ValueError(
                'rollout.earlier_steps must be 0 with schedule.kind = "free": an earlier policy may be gone when a straggler '
                "asks for it, version 0 stays"
            )
        if self.is_pooled and (self.designer != "frozen" or self.design.hint_by_second_call or self.design.attempts > 1):
            raise ValueError(
                f'pool = "{self.pool}" needs designer = "frozen", design.attempts = 1 and design.hint_by_second_call = false: '
                "nobody designs"
            )
        if self.collapse.enabled and self.is_pooled:
            raise ValueError(f'collapse.enabled is for pool = "self-play": with pool = "{self.pool}" nobody designs')
        if self.collapse.enabled and not self.memory.enabled and not self.reads_corpus:
            raise ValueError("collapse.enabled needs memory.enabled or corpus.enabled: else it can change nothing")
        if self.pool == "procedural" and self.levels.rule == "memory" and not self.memory.enabled:
            raise ValueError('levels.rule = "memory" needs memory.enabled = true')
        if self.rollout.newest_each_turn and self.schedule.kind != "free":
            raise ValueError('rollout.newest_each_turn is for schedule.kind = "free": in "fixed" the schedule names the policy')
        if self.designer == "external":
            self._check_external()
        if not self.skills:
            raise ValueError("skills must name at least one skill")
        if self.model.dialect not in ("nano", self.setting):
            raise ValueError(f"model.dialect ({self.model.dialect}) is not that of setting ({self.setting})")
        return self

    def _check_external(self) -> None:
        external = self.external
        if not external.url or not external.model:
            raise ValueError('designer = "external" needs external.url and external.model')
        if external.key_file and external.key_variable:
            raise ValueError("external.key_file and external.key_variable are both set: name one place of the key")
        if external.mode == "text" and self.model.dialect == "nano":
            raise ValueError('external.mode must be "tokens" with model.dialect = "nano": its prompts are no text')
