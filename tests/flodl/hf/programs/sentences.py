"""Encode sentences and compare them, with the calls that sentence-transformers teaches first.

python sentences.py MODEL
"""

import json
import sys

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
sentences = [
    "the quick brown fox jumps over the lazy dog",
    "Ada Lovelace met Charles Babbage in London in the year 1833.",
    "the dog",
]
embeddings = model.encode(sentences)
similarities = model.similarity(embeddings, embeddings)
one = model.encode("the fox", normalize_embeddings=True)
batched = model.encode(sentences, batch_size=2, show_progress_bar=False, convert_to_tensor=True)
prompted = model.encode(sentences, prompt="the year: ")
query = model.encode_query("the fox")
documents = model.encode_document(sentences)
ranked = model.similarity(query, documents)[0].argsort(descending=True)
model.max_seq_length = 6
short = model.encode(sentences)

print(
    json.dumps(
        {
            "kind": type(embeddings).__name__,
            "shape": list(embeddings.shape),
            "embeddings": embeddings.tolist(),
            "similarities": similarities.tolist(),
            "one": one.tolist(),
            "batched": batched.tolist(),
            "prompted": prompted.tolist(),
            "query": query.tolist(),
            "ranked": ranked.tolist(),
            "short": short.tolist(),
        }
    )
)
