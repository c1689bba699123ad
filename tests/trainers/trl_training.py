"""Two steps and an evaluation of TRL's own GRPO trainer on a tiny model, as a user's program makes them.

    python trl_training.py SERVICE_URL MODEL_DIR OUT_DIR

It says `ready` before its first rollout, and then, as JSON, what TRL logged, by how much the weights
changed, and what it has evaluated.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from prorl_mq.bridges.trl import rewards, rollout_func, trainer_of
from prorl_mq.schema.messages import Task

sys.modules["vllm"] = None  # it is there, too, and TRL would spend its time on importing it
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


def task_of(prompt: str) -> Task:
    return Task(task_id=prompt, data_source="echo", payload={"question": prompt})


def main() -> None:
    url, model, out = sys.argv[1:]
    policy = AutoModelForCausalLM.from_pretrained(model)
    before = {name: weights.detach().clone() for name, weights in policy.named_parameters()}
    made: list[tuple[int, float]] = []

    class Watched(GRPOTrainer):
        """What TRL's own loss is given: of each row its trained tokens, and its advantage."""

        def _compute_loss(self, model, inputs):
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            made.extend(zip(mask.sum(-1).tolist(), inputs["advantages"].tolist(), strict=True))
            return super()._compute_loss(model, inputs)

    trainer = trainer_of(Watched)(
        model=policy,
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(4)]),
        eval_dataset=Dataset.from_list([{"prompt": "evaluation"}]),
        rollout_func=rollout_func(url, task_of),
        reward_funcs=[rewards],
        args=GRPOConfig(
            output_dir=str(Path(out)),
            max_steps=2,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=4,  # rows are divided into so many parts
            num_generations=2,
            num_generations_eval=1,
            per_device_eval_batch_size=1,
            max_completion_length=64,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=0,
        ),
    )
    print("ready", flush=True)
    trainer.train()
    evaluated = trainer.evaluate()
    changed = max((weights.detach() - before[name]).abs().max().item() for name, weights in policy.named_parameters())
    print(
        json.dumps({"logs": trainer.state.log_history, "changed": changed, "made": made, "evaluated": evaluated}),
        flush=True,
    )


if __name__ == "__main__":
    main()
