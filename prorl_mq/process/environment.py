"""Variables of the environment that no flag has: where each is read, and what it holds."""

from typing import Final

from prorl_mq.settings import Setting

ALL: Final = ("prorl-mq", "prorl-api", "prorl-worker", "prorl-keeper")
REACH_REDIS: Final = ("prorl-mq", "prorl-api", "prorl-worker", "prorl-keeper", "prorl-slurm")
INIT, RUN, EVAL = "INIT workers", "RUN workers", "EVAL workers"
DASHBOARD: Final = ("prorl-mq dashboard", "python -m prorl_mq.dashboard")
INTERNAL: Final = {"PRORL_SANDBOX_ID", "PRORL_ENDS_AT"}  # set by one of our processes for another

VARIABLES: Final = (
    Setting("PRORL_LOG", "level of the log: DEBUG, INFO, WARNING, ERROR", default="WARNING", programs=ALL),
    Setting("PRORL_LOG_FORMAT", "`json` makes each line a JSON object", programs=ALL),
    Setting("PRORL_REDIS_USERNAME", "user of Redis, where its URL names none", programs=REACH_REDIS),
    Setting("PRORL_REDIS_PASSWORD", "that user's password", programs=REACH_REDIS),
    Setting("PRORL_LEASE_MS", "the workers' `--lease-ms`, the same in every process", type=int, default=15_000,
            unit="ms", programs=("prorl-api",)),
    Setting("PRORL_BACKEND_KEYS", "TOML file of API keys for backends, mode 600", metavar="FILE",
            programs=("prorl-api", RUN, "prorl-mq doctor")),
    Setting("PRORL_DASHBOARD_TOKEN", "token that a browser needs for rq-dashboard's page", programs=DASHBOARD),
    Setting("PRORL_MIRROR_USERNAME", "user of Redis for RQ's records, where they have one of their own",
            programs=DASHBOARD),
    Setting("PRORL_MIRROR_PASSWORD", "that user's password", programs=DASHBOARD),
    Setting("PRORL_SANDBOX_TOOLS", "directory that `prorl-mq install-tools` has filled; else the state directory",
            metavar="DIR", programs=("prorl-worker", "prorl-keeper", "python -m sandbox")),
    Setting("PRORL_SANDBOX_PYTHON", "directory with IPython for sandboxes; else `sandbox-python` of the tools",
            metavar="DIR", programs=("prorl-worker", "prorl-keeper")),
    Setting("PRORL_SANDBOX_SERVER", "server of sandboxes of kind `remote`", metavar="URL",
            programs=("prorl-worker", "prorl-keeper", "python -m sandbox")),
    Setting("PRORL_SANDBOX_TOKEN_FILE", "file with the token for that server, mode 600", metavar="FILE",
            programs=("prorl-worker", "prorl-keeper", "python -m sandbox")),
    Setting("PRORL_IMAGES_BYTES", "size of the cache of images", type=int, default=50 << 30, unit="bytes",
            programs=("prorl-worker", "prorl-keeper")),
    Setting("PRORL_IMAGES", "TOML file: storage of images that nodes share, logins and mirrors of registries",
            metavar="FILE", programs=("prorl-worker", "prorl-mq images")),
    Setting("PRORL_RENDERER", "model format, where the chat template's own is not meant: chatml, qwen_xml and so on",
            programs=(RUN,)),
    Setting("PRORL_TEMPLATE_OPTIONS", "options of the chat template", metavar="JSON", programs=(RUN,)),
    Setting("PRORL_MODELS", "TOML file with the tokenizer of each pool, where they differ", metavar="FILE",
            programs=(RUN, "prorl-mq doctor")),
    Setting("PRORL_MCP_SERVERS", "MCP servers that tasks may name, `name=url,name=url`", programs=(RUN,)),
    Setting("PRORL_EGRESS", "hosts that tasks may list: `any`, names, `*.` domains, internal networks, by commas",
            programs=(INIT, RUN)),
    Setting("PRORL_AGENTS", "directory of agent harnesses, filled by `make agents` in a checkout",
            default=".state/agents", metavar="DIR", programs=(RUN,)),
    Setting("PRORL_SWE_IMAGES", "file that maps software engineering tasks to images", metavar="FILE",
            programs=(INIT, EVAL)),
    Setting("PRORL_VERIFIERS", "verifiers environments that tasks may name, separated by commas",
            programs=(INIT, EVAL)),
    Setting("PRORL_SCORERS", "`unconfined` runs scorers without confinement, on a host without bubblewrap",
            programs=(INIT, RUN, EVAL)),
    Setting("PRORL_JUDGE_URLS", "OpenAI-compatible servers of the judge, separated by commas, or pool:NAME",
            programs=(EVAL,)),
    Setting("PRORL_JUDGE_MODEL", "the judge's model", programs=(EVAL,)),
    Setting("PRORL_JUDGE_KEY", "bearer token for the judge", programs=(EVAL,)),
    Setting("PRORL_JUDGE_VOTES", "answers of the judge to one question", type=int, default=1, programs=(EVAL,)),
    Setting("PRORL_REWARD_URLS", "reward services, separated by commas", programs=(EVAL,)),
    Setting("PRORL_REWARD_SOURCES", "data sources that they score, separated by commas", default="reward_service",
            programs=(INIT, RUN, EVAL)),
)  # fmt: skip
