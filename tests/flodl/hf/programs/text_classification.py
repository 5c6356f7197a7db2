"""Fine-tune a text classifier in a native PyTorch loop, then use it.

The calls of model and tokenizer are those that the guides of transformers teach.

    python text_classification.py ENCODER OUTPUT
"""

import json
import sys

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

checkpoint, output = sys.argv[1:3]
id2label = {0: "NEGATIVE", 1: "POSITIVE"}
label2id = {"NEGATIVE": 0, "POSITIVE": 1}
reviews = [
    ("the quick brown fox jumps", 1),
    ("the lazy dog", 0),
    ("She moved from New York to San Francisco for Acme Corp.", 1),
    ("Ada Lovelace met Charles Babbage in London in the year 1833.", 0),
    ("the fox and the dog", 1),
    ("the Federal Bank", 0),
    ("the orchestra played twice", 1),
    ("quick rates", 0),
]

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForSequenceClassification.from_pretrained(
    checkpoint, num_labels=2, id2label=id2label, label2id=label2id
)


def collate(examples):
    """A padded batch with its labels."""
    texts, labels = zip(*examples, strict=True)
    batch = tokenizer(
        list(texts), padding=True, truncation=True, max_length=16, return_tensors="pt"
    )
    return {**batch, "labels": torch.tensor(labels)}


train_dataloader = DataLoader(reviews, batch_size=3, collate_fn=collate)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
optimizer = AdamW(model.parameters(), lr=5e-3)
num_epochs = 3
steps = num_epochs * len(train_dataloader)
lr_scheduler = LambdaLR(optimizer, lambda step: 1 - step / steps)

losses = []
model.train()
for _ in range(num_epochs):
    for batch in train_dataloader:
        batch = {name: value.to(device) for name, value in batch.items()}  # noqa: PLW2901
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())

model.eval()
predicted, logits = [], []
for batch in DataLoader(reviews, batch_size=4, collate_fn=collate):
    batch = {name: value.to(device) for name, value in batch.items()}  # noqa: PLW2901
    with torch.no_grad():
        outputs = model(**batch)
    predicted += torch.argmax(outputs.logits, dim=-1).tolist()
    logits += outputs.logits.tolist()

model.save_pretrained(output)
tokenizer.save_pretrained(output)
tokenizer = AutoTokenizer.from_pretrained(output)
model = AutoModelForSequenceClassification.from_pretrained(output)
inputs = tokenizer("the quick dog", return_tensors="pt")
with torch.no_grad():
    answer = model(**inputs).logits
predicted_class_id = answer.argmax().item()

print(
    json.dumps(
        {
            "losses": losses,
            "predicted": predicted,
            "logits": logits,
            "answer": answer.tolist(),
            "label": model.config.id2label[predicted_class_id],
            "parameters": model.num_parameters(),
        }
    )
)
