"""Train the word-problem agent: OPENAI_API_KEY=any python examples/word_problems/train.py MODEL_FOLDER"""

import sys

import leyden
from leyden.examples.word_problems.agent import solve
from leyden.examples.word_problems.reward import score
from leyden.examples.word_problems.tasks import TRAINED, UNSEEN, WordProblem, generate


@leyden.rollout
def word_problem(task: WordProblem, llm: leyden.LLM) -> float:
    """Run the agent on one problem; the reward is whether its answer is right."""
    return score(solve(task["question"], llm.model), task["answer"])


def main(model: str) -> None:
    """Twenty updates of 16 problems, 8 tries each; validated on wordings that were never trained on."""
    trainer = leyden.Trainer(model=model, algorithm=leyden.LightningRL(groups_per_step=16, group_size=8), n_steps=20)
    fit = trainer.fit(word_problem, generate("train", 2000, TRAINED), generate("validation", 64, UNSEEN))
    for step in fit.steps:
        print(f"step {step.step}: reward {step.reward}, version {step.version}")
    print("validation:", fit.validation)


if __name__ == "__main__":
    main(sys.argv[1])
