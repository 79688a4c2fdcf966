"""A tiny BERT classifies sequences with the Hugging Face Trainer."""

import argparse
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCAB, LENGTH = 40, 16


class Sequences(Dataset):
    """The class is the token that occurs most among three; sequences differ in length."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(count):
            label = int(rng.integers(3))
            length = int(rng.integers(6, LENGTH - 1))
            tokens = rng.integers(8, VOCAB, length)
            tokens[rng.random(length) < 0.4] = 4 + label
            self.rows.append((tokens.tolist(), label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        tokens, label = self.rows[index]
        return {"tokens": [2, *tokens], "label": label}


def collate(rows):
    longest = max(len(row["tokens"]) for row in rows)
    input_ids, attention_mask = [], []
    for row in rows:
        padding = longest - len(row["tokens"])
        input_ids.append(row["tokens"] + [0] * padding)
        attention_mask.append([1] * len(row["tokens"]) + [0] * padding)
    return {
        "input_ids": torch.tensor(input_ids),
        "attention_mask": torch.tensor(attention_mask),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def compute_metrics(prediction):
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


class Printer(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"epoch {state.epoch:.2f} {metrics['eval_loss']:.6f} {metrics['eval_accuracy']:.4f}")


def build_model():
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        num_labels=3,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 1.0, 1.5])
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        training_args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            learning_rate=5e-4,
            weight_decay=0.01,
            warmup_steps=2,
            lr_scheduler_type="linear",
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=50,
            seed=args.seed,
            use_cpu=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )
        trainer = WeightedTrainer(
            model=build_model(),
            args=training_args,
            train_dataset=Sequences(128, 1),
            eval_dataset=Sequences(64, 2),
            data_collator=collate,
            compute_metrics=compute_metrics,
            callbacks=[Printer()],
        )
        trainer.train()


if __name__ == "__main__":
    main()
