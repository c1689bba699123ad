"""TRL: GRPO on rollouts of the service, all rows of a sample.

python trl_grpo.py http://127.0.0.1:8080 path/to/model tasks.jsonl
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_mq.bridges.tasks import task_of
from prorl_mq.bridges.trl import rewards, rollout_func, trainer_of


def main() -> None:
    url, model, rows = sys.argv[1:]
    prompts = [{"prompt": line} for line in Path(rows).read_text().splitlines()]
    trainer = trainer_of(GRPOTrainer)(
        model=model,
        train_dataset=Dataset.from_list(prompts),
        rollout_func=rollout_func(url, lambda line: task_of(json.loads(line))),
        reward_funcs=[rewards],
        args=GRPOConfig(output_dir="out", num_generations=8, max_completion_length=4096),
    )
    trainer.train()


if __name__ == "__main__":
    main()
